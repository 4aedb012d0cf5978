package main

import (
	"os"
	"strings"
	"testing"
)

// The lock of the repository pins every package for both architectures, and is written as it is
// read.
func TestLockFile(t *testing.T) {
	text, err := os.ReadFile("debian.lock")
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLock(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.text(); err != nil || string(again) != string(text) {
		t.Errorf("written again it is: %v\n%s", err, again)
	}
	for _, arch := range architectures {
		if got := len(l.of(arch)); got != len(packages) {
			t.Errorf("%d packages for %s, want %d", got, arch, len(packages))
		}
	}
	if l.Suite != suite {
		t.Errorf("it is of %s, want %s", l.Suite, suite)
	}
}

func TestLockErrors(t *testing.T) {
	head := `{"suite":"trixie","time":"2026-11-22T00:00:00Z"}` + "\n"
	for text, want := range map[string]string{
		"":                                   "debian.lock: EOF: run `make image-lock` to rewrite it",
		head:                                 "debian.lock: EOF",
		`{"time":"yesterday"}`:               "parsing time",
		head + `{"arch":"amd64","size":"1"}`: `unknown field "size"`,
		head + `{"arch":"amd64","name":"x","sha256":""}`: "is not a SHA-256 in hexadecimal",
	} {
		if _, err := parseLock([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
