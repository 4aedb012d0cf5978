package logging

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Names of files in a folder can be foreseen. What somebody has planted there, a symbolic link to another file or a file
// of theirs, is not written to; the log goes on under another name.
func TestPlantedInDir(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the time is known, as it can be guessed outside
		dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
		plant(t, victim)
		var links []string
		at := time.Now()
		for i := range 3 {
			for _, severity := range severityNames[:3] {
				name, link := names("kube-proxy", severity, at.Add(time.Duration(i)*time.Microsecond))
				links = append(links, filepath.Join(dir, link))
				if i == 1 {
					plant(t, filepath.Join(dir, name))
				} else if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, link := range links[:3] {
			if err := os.Symlink(victim, link); err != nil {
				t.Fatal(err)
			}
		}
		l, _, _ := open(t, Config{Dir: dir, StderrThreshold: 3})
		say(l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"one two three", "two three", "three"} {
			data, err := os.ReadFile(links[i])
			if messages(string(data)) != want {
				t.Errorf("%s has %q (%v), want %q", links[i], messages(string(data)), err, want)
			}
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, file := range append(files, victim) {
			if data, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(data), "Log file created") && string(data) != planted {
				t.Errorf("%s has %q, %v", file, data, err)
			}
		}
	})
}

// As many names as one likes: then the log cannot be written, which is told.
func TestAllPlanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, at := t.TempDir(), time.Now()
		for i := range mostNames {
			name, _ := names("kube-proxy", "INFO", at.Add(time.Duration(i)*time.Microsecond))
			plant(t, filepath.Join(dir, name))
		}
		if _, err := New(Config{Format: "text", Dir: dir, Program: "kube-proxy"}); err == nil || !strings.Contains(err.Error(), "file exists") {
			t.Errorf("no name is free, but the error is %v", err)
		}
	})
}

// The one log file may be a symbolic link of the administrator, such as /dev/stdout, but not of another user.
func TestPlantedFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a link of another user needs root; TestPlantedInDir does without")
	}
	victim, link := filepath.Join(t.TempDir(), "victim"), filepath.Join(t.TempDir(), "proxy.log")
	plant(t, victim)
	if err := os.Symlink(victim, link); err != nil {
		t.Fatal(err)
	}
	l, _, _ := open(t, Config{File: link, StderrThreshold: 3})
	say(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(victim); err != nil || messages(strings.TrimPrefix(string(data), planted)) != "one two three" {
		t.Errorf("a link of root's leads to %q, %v", data, err)
	}
	if err := os.Lchown(link, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Format: "text", File: link}); err == nil || !strings.Contains(err.Error(), "it is a symbolic link of user 65534, which is not followed") {
		t.Errorf("a link of another user: %v", err)
	}
}

const planted = "precious\n"

func plant(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(planted), 0o600); err != nil {
		t.Fatal(err)
	}
}
