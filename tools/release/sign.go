package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// sign signs the sums, and so all files, with a private key.
func sign(dir, keyFile string) error {
	block, err := readPEM(keyFile)
	if err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(block)
	if err != nil {
		return fmt.Errorf("read the key %s: %w", keyFile, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		return err
	}
	var signature []byte
	switch key := key.(type) {
	case ed25519.PrivateKey:
		signature, err = key.Sign(nil, text, crypto.Hash(0))
	case *ecdsa.PrivateKey:
		digest := sha256.Sum256(text)
		signature, err = ecdsa.SignASN1(rand.Reader, key, digest[:])
	default:
		err = fmt.Errorf("the key %s is a %T: want Ed25519 or ECDSA", keyFile, key)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sumsFile+".sig"), signature, 0o644)
}

func readPEM(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("the key %s is no PEM file", name)
	}
	return block.Bytes, nil
}

// verify checks the signature, the sums of all files, and that this commit makes the same files.
func verify(ctx context.Context, want plan, dir, publicFile string, out io.Writer) error {
	if dir == "" {
		return errors.New("-o: want the folder of a release")
	}
	text, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		return err
	}
	if publicFile == "" {
		fmt.Fprintln(out, "signature: not checked, no public key was named")
	} else if err := verifySignature(dir, publicFile, text); err != nil {
		return err
	} else {
		fmt.Fprintln(out, "signature: ok")
	}
	if err := verifySums(dir, text); err != nil {
		return err
	}
	fmt.Fprintln(out, "sums: ok")
	made, commit, err := origin(dir)
	if err != nil {
		return err
	}
	want.version, want.url = made.Version, made.URL
	changes, err := git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if head, err := git(ctx, "rev-parse", "HEAD"); err != nil || head != commit || changes != "" {
		return fmt.Errorf("the release is of commit %s: check that out, without changes, to rebuild it", commit)
	}
	temp, err := os.MkdirTemp("", "verify-release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := build(ctx, want, temp); err != nil {
		return err
	}
	again, err := os.ReadFile(filepath.Join(temp, sumsFile))
	if err != nil {
		return err
	}
	if !bytes.Equal(text, again) {
		return fmt.Errorf("rebuilt files differ: %s", strings.Join(differences(string(text), string(again)), ", "))
	}
	_, err = fmt.Fprintln(out, "rebuilt: equal")
	return err
}

func verifySignature(dir, publicFile string, text []byte) error {
	block, err := readPEM(publicFile)
	if err != nil {
		return err
	}
	key, err := x509.ParsePKIXPublicKey(block)
	if err != nil {
		return fmt.Errorf("read the key %s: %w", publicFile, err)
	}
	signature, err := os.ReadFile(filepath.Join(dir, sumsFile+".sig"))
	if err != nil {
		return fmt.Errorf("read the signature: %w", err)
	}
	good := false
	switch key := key.(type) {
	case ed25519.PublicKey:
		good = ed25519.Verify(key, text, signature)
	case *ecdsa.PublicKey:
		digest := sha256.Sum256(text)
		good = ecdsa.VerifyASN1(key, digest[:], signature)
	}
	if !good {
		return fmt.Errorf("%s is not signed with the key %s", sumsFile, publicFile)
	}
	return nil
}

// verifySums checks that the folder has the files of the sums, and no others.
func verifySums(dir string, text []byte) error {
	known := map[string]bool{sumsFile: true, sumsFile + ".sig": true}
	for line := range strings.Lines(string(text)) {
		want, name, found := strings.Cut(strings.TrimSpace(line), "  ")
		if !found || name != filepath.Base(name) {
			return fmt.Errorf("%s: unknown line %q", sumsFile, line)
		}
		body, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if sum(body) != want {
			return fmt.Errorf("%s has another sum than %s says", name, sumsFile)
		}
		known[name] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !known[e.Name()] {
			return fmt.Errorf("%s is not in %s", e.Name(), sumsFile)
		}
	}
	return nil
}

// parameters are those of a release in its provenance.
type parameters struct{ Version, URL string }

// origin returns the parameters and the commit of a release by its provenance.
func origin(dir string) (made parameters, commit string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, provenanceFile))
	if err != nil {
		return made, "", err
	}
	var p struct {
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   parameters
				ResolvedDependencies []struct {
					Digest struct{ GitCommit string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return made, "", fmt.Errorf("read %s: %w", provenanceFile, err)
	}
	b := p.Predicate.BuildDefinition
	if len(b.ResolvedDependencies) == 0 || !versions.MatchString(b.ExternalParameters.Version) {
		return made, "", fmt.Errorf("%s names no version and commit", provenanceFile)
	}
	return b.ExternalParameters, b.ResolvedDependencies[0].Digest.GitCommit, nil
}

// differences returns the names of lines that only one of two lists of sums has.
func differences(a, b string) (names []string) {
	for _, pair := range [][2]string{{a, b}, {b, a}} {
		for line := range strings.Lines(pair[0]) {
			if _, name, _ := strings.Cut(strings.TrimSpace(line), "  "); !strings.Contains(pair[1], line) &&
				!strings.Contains(strings.Join(names, " "), name) {
				names = append(names, name)
			}
		}
	}
	return names
}
