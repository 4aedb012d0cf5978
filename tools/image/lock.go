package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"
)

// lockFile is the name of the lock in the repository.
const lockFile = "tools/image/debian.lock"

// architectures are those of the image with packages of Debian, as Go and Debian call them.
var architectures = []string{"amd64", "arm64"}

// lock lists the Debian packages of the image. The file has a line of JSON for its head, and then
// one for each pin.
type lock struct {
	head
	pins []pin
}

type head struct {
	Suite string    `json:"suite"`
	Time  time.Time `json:"time"` // when it was written: the time of all files of the layer
}

// pin is one package for one architecture.
type pin struct {
	Arch    string `json:"arch"`
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Archive string `json:"archive"` // debian or debian-security
	Path    string `json:"path"`    // below the archive
}

func (p pin) String() string { return fmt.Sprintf("%s %s (%s)", p.Name, p.Version, p.Arch) }

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseLock reads a lock.
func parseLock(text []byte) (l lock, err error) {
	lines := json.NewDecoder(bytes.NewReader(text))
	lines.DisallowUnknownFields()
	for err = lines.Decode(&l.head); err == nil; {
		var p pin
		err = lines.Decode(&p)
		if err == nil && !hexDigest.MatchString(p.SHA256) {
			err = fmt.Errorf("package %s: %q is not a SHA-256 in hexadecimal", p, p.SHA256)
		}
		l.pins = append(l.pins, p)
	}
	if errors.Is(err, io.EOF) && len(l.pins) > 1 {
		l.pins = l.pins[:len(l.pins)-1]
		return l, nil
	}
	return lock{}, fmt.Errorf("%s: %w: run `make image-lock` to rewrite it", lockFile, err)
}

// of returns the pins of an architecture.
func (l lock) of(arch string) (pins []pin) {
	for _, p := range l.pins {
		if p.Arch == arch {
			pins = append(pins, p)
		}
	}
	return pins
}

// text returns the format that parseLock reads.
func (l lock) text() ([]byte, error) {
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	err := lines.Encode(l.head)
	for _, p := range l.pins {
		err = errors.Join(err, lines.Encode(p))
	}
	return b.Bytes(), err
}
