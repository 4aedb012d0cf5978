package main

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lockFile is the name of the lock in this folder.
const lockFile = "tools/image/debian.lock"

// lock says which packages of Debian the image is made of.
type lock struct {
	suite string
	time  time.Time // when it was written: the time of all files of the layer
	pins  []pin
}

// pin is one package for one architecture.
type pin struct {
	arch    string // of the image: amd64 or arm64
	name    string
	version string
	size    int64
	sha256  string
	archive string // debian or debian-security
	path    string // below the archive
}

func (p pin) String() string { return fmt.Sprintf("%s %s (%s)", p.name, p.version, p.arch) }

var (
	hexDigest   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]+$`)
	archives    = []string{"debian", "debian-security"}
	// architectures are those of the image, as Go and Debian call them.
	architectures = []string{"amd64", "arm64"}
)

// parseLock reads a lock. Errors name the line.
func parseLock(text string) (l lock, err error) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if err := l.add(f); err != nil {
			return lock{}, fmt.Errorf("%s:%d: %w", lockFile, number, err)
		}
	}
	if l.suite == "" || l.time.IsZero() || len(l.pins) == 0 {
		return lock{}, fmt.Errorf("%s: want a line suite, a line time and packages: `make image-lock` writes it anew", lockFile)
	}
	return l, nil
}

func (l *lock) add(f []string) (err error) {
	switch {
	case f[0] == "suite" && len(f) == 2:
		l.suite = f[1]
		return nil
	case f[0] == "time" && len(f) == 2:
		if l.time, err = time.Parse(time.RFC3339, f[1]); err != nil {
			return fmt.Errorf("time: %w", err)
		}
		l.time = l.time.UTC()
		return nil
	case len(f) != 7:
		return fmt.Errorf("%d fields, want: architecture package version size sha256 archive path", len(f))
	}
	p := pin{arch: f[0], name: f[1], version: f[2], sha256: f[4], archive: f[5], path: f[6]}
	p.size, err = strconv.ParseInt(f[3], 10, 64)
	switch {
	case !slices.Contains(architectures, p.arch):
		return fmt.Errorf("architecture %q, want one of %v", p.arch, architectures)
	case !packageName.MatchString(p.name):
		return fmt.Errorf("%q is not the name of a package", p.name)
	case err != nil || p.size <= 0:
		return fmt.Errorf("package %s: size %q, want a number of bytes", p.name, f[3])
	case !hexDigest.MatchString(p.sha256):
		return fmt.Errorf("package %s: %q is not a SHA-256 in hexadecimal", p.name, p.sha256)
	case !slices.Contains(archives, p.archive):
		return fmt.Errorf("package %s: archive %q, want one of %v", p.name, p.archive, archives)
	case path.Clean("/" + p.path)[1:] != p.path:
		return fmt.Errorf("package %s: path %q, want one below the archive", p.name, p.path)
	case slices.ContainsFunc(l.pins, func(o pin) bool { return o.arch == p.arch && o.name == p.name }):
		return fmt.Errorf("package %s for %s is there twice", p.name, p.arch)
	}
	l.pins = append(l.pins, p)
	return nil
}

// of returns the pins of an architecture.
func (l lock) of(arch string) (pins []pin) {
	for _, p := range l.pins {
		if p.arch == arch {
			pins = append(pins, p)
		}
	}
	return pins
}

// String is the lock's text.
func (l lock) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# What the image holds of Debian. Written by `make image-lock`; do not edit.\nsuite %s\ntime %s\n\n", l.suite, l.time.UTC().Format(time.RFC3339))
	b.WriteString("# architecture package version size sha256 archive path\n")
	for _, p := range l.pins {
		fmt.Fprintf(&b, "%s %s %s %d %s %s %s\n", p.arch, p.name, p.version, p.size, p.sha256, p.archive, p.path)
	}
	return b.String()
}

// pinsEqual reports whether two locks pin the same.
func pinsEqual(a, b lock) bool { return a.suite == b.suite && slices.Equal(a.pins, b.pins) }
