package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A release is the same when it is built again, and its documents name each file with its sum, the
// modules, the commit and the version.
func TestBuild(t *testing.T) {
	t.Chdir("../..")
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	want := plan{version: "0.1.0", url: "https://example.org/v1/", platforms: platforms[4:5]}
	for _, dir := range []string{one, two} {
		if err := build(t.Context(), want, dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kubectl-svcproxy-0.1.0-linux-amd64.tar.gz", "kube-proxy-chart-0.1.0.tgz",
		"svcproxy.yaml", "release-notes.md", "sbom.spdx.json", provenanceFile, sumsFile} {
		a, err := os.ReadFile(filepath.Join(one, name))
		b, again := os.ReadFile(filepath.Join(two, name))
		if err != nil || again != nil || len(a) == 0 || !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes, and then others: %v, %v", name, len(a), err, again)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid(a) {
			t.Errorf("%s is no JSON", name)
		}
	}
	bill, _ := os.ReadFile(filepath.Join(one, "sbom.spdx.json"))
	for _, want := range []string{`"pkg:golang/k8s.io/client-go@`, `"pkg:golang/stdlib@1.`, `"STATIC_LINK"`} {
		if !strings.Contains(string(bill), want) {
			t.Errorf("the bill of materials has no %s", want)
		}
	}
	head, err := git(t.Context(), "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if made, commit, err := origin(one); err != nil || made != (parameters{want.version, want.url}) || commit != head {
		t.Errorf("of %+v and commit %q: %v", made, commit, err)
	}
	if err := build(t.Context(), plan{version: "0.1.0"}, one); err == nil {
		t.Error("files of an earlier release are mixed with those of this one")
	}
	text, _ := os.ReadFile(filepath.Join(one, sumsFile))
	if err := verifySums(one, text); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func() error{
		func() error { return os.WriteFile(filepath.Join(one, "stray"), nil, 0o644) },
		func() error { return os.WriteFile(filepath.Join(one, "sbom.spdx.json"), []byte("{}"), 0o644) },
		func() error { return os.Remove(filepath.Join(one, "kube-proxy-chart-0.1.0.tgz")) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if err := verifySums(one, text); err == nil {
			t.Error("a changed folder passes")
		}
		os.Remove(filepath.Join(one, "stray"))
	}
}

// The sums are signed with the caller's key, of either kind; a changed file or another key is
// found.
func TestSign(t *testing.T) {
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	dir := t.TempDir()
	text := []byte("abc  file\n")
	save := func(name, kind string, der []byte, err error) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	if err := os.WriteFile(filepath.Join(dir, sumsFile), text, 0o644); err != nil {
		t.Fatal(err)
	}
	var publics []string
	for i, key := range []interface{ Public() any }{publicOf{ed, ed.Public()}, publicOf{ec, ec.Public()}} {
		private, err := x509.MarshalPKCS8PrivateKey(key.(publicOf).private)
		keyFile := save("key", "PRIVATE KEY", private, err)
		public, err := x509.MarshalPKIXPublicKey(key.Public())
		publics = append(publics, save([]string{"ed.pub", "ec.pub"}[i], "PUBLIC KEY", public, err))
		if err := sign(dir, keyFile); err != nil {
			t.Fatal(err)
		}
		if err := verifySignature(dir, publics[i], text); err != nil {
			t.Error(err)
		}
		if err := verifySignature(dir, publics[i], append([]byte("x"), text...)); err == nil {
			t.Error("changed sums pass")
		}
	}
	if err := verifySignature(dir, publics[0], text); err == nil {
		t.Error("another key passes")
	}
	if err := sign(dir, publics[0]); err == nil {
		t.Error("signed with a public key")
	}
}

type publicOf struct{ private, public any }

func (p publicOf) Public() any { return p.public }

// Versions that are none, and a modified tree, are refused before anything is built.
func TestBadCalls(t *testing.T) {
	for _, args := range [][]string{{}, {"-version", "v1"}, {"-version", "../1.0.0"}, {"verify"},
		{"verify", "-o", t.TempDir()}, {"-version", "1.0.0", "-url", "http://example.org"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
