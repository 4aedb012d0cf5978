package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// writeServer writes NAME.crt and NAME.key into dir: a server certificate that is valid for a day,
// for the given addresses and names only. It is its own authority.
func writeServer(dir, name string, addrs []netip.Addr, dns []string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("generate key of %s: %w", name, err)
	}
	var ips []net.IP
	for _, addr := range addrs {
		ips = append(ips, net.IP(addr.AsSlice()))
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:           ips,
		DNSNames:              dns,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", "", fmt.Errorf("sign certificate of %s: %w", name, err)
	}
	certFile = filepath.Join(dir, name+".crt")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return "", "", fmt.Errorf("write certificate of %s: %w", name, err)
	}
	keyFile, err = writeKey(dir, name, key)
	return certFile, keyFile, err
}

// writeKey writes NAME.key into dir.
func writeKey(dir, name string, key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("encode key of %s: %w", name, err)
	}
	file := filepath.Join(dir, name+".key")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return "", fmt.Errorf("write key of %s: %w", name, err)
	}
	return file, nil
}

// writeServiceAccountKeys writes the key pair with which the API server signs service-account
// tokens.
func writeServiceAccountKeys(dir string) (private, public string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("generate service-account key: %w", err)
	}
	private, err = writeKey(dir, "service-account", key)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "", "", fmt.Errorf("encode service-account key: %w", err)
	}
	public = filepath.Join(dir, "service-account.pub")
	if err := os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		return "", "", fmt.Errorf("write service-account key: %w", err)
	}
	return private, public, nil
}
