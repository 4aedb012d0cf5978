//go:build linux

package logging

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A disk that was full for a while costs lines of that time, and no others.
func TestDiskFull(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	l, _, errOut := open(t, Config{File: name, FileMaxMB: 1, FlushFrequency: time.Hour, StderrThreshold: 3})
	log := l.Logger()
	fd := int(l.out.single.f.Fd())
	disk, err := unix.Dup(fd)
	must(t, err)
	full, err := unix.Open("/dev/full", unix.O_WRONLY, 0)
	must(t, err)

	log.Info("before")
	must(t, l.Flush())
	must(t, unix.Dup3(full, fd, 0))
	log.Info("meanwhile")
	if err := l.Flush(); err == nil {
		t.Error("nobody is told that the disk is full")
	}
	must(t, unix.Dup3(disk, fd, 0))
	log.Info("after")
	must(t, l.Flush())
	has := func(want ...string) {
		t.Helper()
		text, err := os.ReadFile(name)
		must(t, err)
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("the file lacks %q:\n%.300s\nstderr: %s", w, text, errOut)
			}
		}
	}
	has("before", "after")

	// It is full when the file is to be begun anew, too.
	must(t, unix.Dup3(full, fd, 0))
	long := strings.Repeat("x", 1<<10)
	for range 1 << 10 {
		log.Info(long)
	}
	log.Info("anew")
	must(t, l.Close())
	has("anew")
	must(t, unix.Close(disk))
	must(t, unix.Close(full))
}

// The same for a stdout that is buffered.
func TestStdoutFull(t *testing.T) {
	out := &limited{}
	l, err := New(Config{Format: "text", ToStderr: true, SplitStream: true, InfoBufferSize: 1 << 10, Stdout: out, Stderr: out})
	must(t, err)
	l.Logger().Info("meanwhile")
	if err := l.Flush(); err == nil {
		t.Error("nobody is told that the disk is full")
	}
	out.room = true
	l.Logger().Info("after")
	must(t, l.Close())
	if !strings.Contains(out.String(), "after") {
		t.Errorf("stdout has %q", out.String())
	}
}

// limited takes nothing as long as it has no room.
type limited struct {
	strings.Builder
	room bool
}

func (l *limited) Write(p []byte) (int, error) {
	if !l.room {
		return 0, unix.ENOSPC
	}
	return l.Builder.Write(p)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
