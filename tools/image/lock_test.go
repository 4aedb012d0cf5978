package main

import (
	"os"
	"strings"
	"testing"
)

const onePin = "amd64 iptables 1.8.11-2 360924 95ba166bb68a76ca1513196dd59d91e3c33b2096884c6de80406f302b18a030e debian pool/main/i/iptables/iptables_1.8.11-2_amd64.deb\n"

// The lock of the repository pins every package for both architectures, and is written as it is read.
func TestLockFile(t *testing.T) {
	text, err := os.ReadFile("debian.lock")
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLock(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if l.String() != string(text) {
		t.Errorf("written again it is:\n%s", l)
	}
	for _, arch := range architectures {
		if got := len(l.of(arch)); got != len(packages) {
			t.Errorf("%d packages for %s, want %d", got, arch, len(packages))
		}
	}
	if l.suite != suite {
		t.Errorf("it is of %s, want %s", l.suite, suite)
	}
}

func TestLockErrors(t *testing.T) {
	head := "suite trixie\ntime 2026-11-22T00:00:00Z\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "want a line suite, a line time and packages: `make image-lock` writes it anew"},
		{"no packages", head, "want a line suite"},
		{"a time that is none", "time yesterday\n", "debian.lock:1: time: parsing time"},
		{"a field is missing", head + "amd64 iptables 1.8.11-2\n", "debian.lock:3: 3 fields, want: architecture package version size sha256 archive path"},
		{"architecture", head + strings.Replace(onePin, "amd64", "s390x", 1), `debian.lock:3: architecture "s390x", want one of [amd64 arm64]`},
		{"name", head + strings.Replace(onePin, "iptables", "../x", 1), `"../x" is not the name of a package`},
		{"size", head + strings.Replace(onePin, "360924", "-1", 1), `package iptables: size "-1", want a number of bytes`},
		{"digest", head + strings.Replace(onePin, "95ba", "zzzz", 1), "is not a SHA-256 in hexadecimal"},
		{"archive", head + strings.Replace(onePin, " debian ", " elsewhere ", 1), `archive "elsewhere", want one of [debian debian-security]`},
		{"path out of the archive", head + strings.Replace(onePin, "pool/main", "../..", 1), "want one below the archive"},
		{"twice", head + onePin + onePin, "debian.lock:4: package iptables for amd64 is there twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := parseLock(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// Whatever stands in the file, reading it ends with an error or with what is written again as it was.
func FuzzLock(f *testing.F) {
	f.Add("suite trixie\ntime 2026-11-22T00:00:00Z\n" + onePin)
	f.Add("# nothing\nsuite x y\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLock(text)
		if err != nil {
			return
		}
		again, err := parseLock(l.String())
		if err != nil || !pinsEqual(l, again) {
			t.Errorf("%v: read again it is\n%s, was\n%s", err, again, l)
		}
	})
}
