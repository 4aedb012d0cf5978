package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"golang.org/x/sys/unix"
)

func TestBadArguments(t *testing.T) {
	t.Chdir("../..")
	folder := filepath.Join(t.TempDir(), "kube-proxy-image.tar")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		env  string // SOURCE_DATE_EPOCH
		want string
	}{
		{"a word too much", []string{"now"}, "", `argument "now" is not known: run`},
		{"an unknown flag", []string{"-platform", "s390x"}, "", "flag provided but not defined: -platform"},
		{"a name with a tag", []string{"-name", "kube-proxy:v1"}, "",
			`name "kube-proxy:v1": want one such as kube-proxy or`},
		{"a name in capitals", []string{"-name", "Registry/Kube"}, "", "without a tag"},
		{"a tag with a blank", []string{"-tag", "v1 beta"}, "", `tag "v1 beta": want letters, digits`},
		{"a folder in its place", []string{"-o", folder}, "", "it is a folder: remove it, or name a file with -o"},
		{"a file in the place of its folder", []string{"-o", "go.mod/x.tar"}, "", "not a directory"},
		{"a time that is none", nil, "yesterday", `SOURCE_DATE_EPOCH is "yesterday": want seconds since 1970`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("SOURCE_DATE_EPOCH", c.env)
			if err := run(t.Context(), c.args, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	t.Run("not in the repository", func(t *testing.T) {
		t.Chdir(t.TempDir())
		if err := run(t.Context(), nil, io.Discard); err == nil ||
			!strings.Contains(err.Error(), "run this in the root of the repository") {
			t.Errorf("error %v", err)
		}
	})
}

// Faults of a mirror, with apt's own downloader and a mirror that listens here.
func TestBadMirrors(t *testing.T) {
	t.Setenv("no_proxy", "127.0.0.1")
	const content = "a package"
	p := pin{Arch: "amd64", Name: "iptables", Version: "1:2-3", SHA256: sha256Of([]byte(content)), Archive: "debian",
		Path: "pool/iptables.deb"}
	asked := 0
	serve := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			w.WriteHeader(status)
			io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/debian"
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	noSources := filepath.Join(t.TempDir(), "apt.conf")
	if err := os.WriteFile(noSources,
		[]byte("Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"/dev/null\";\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	occupied := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(occupied, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, mirror, cache string
		aptConfig           string
		want                string
	}{
		{"a package that is gone", serve(http.StatusNotFound, ""), t.TempDir(), "",
			"has it no more: `make image-lock` pins what Debian has now, and DEBIAN=URI takes another mirror"},
		{"another package of that name", serve(http.StatusOK, "not what it was"), t.TempDir(), "",
			"it is not what tools/image/debian.lock pins"},
		{"a mirror that is down", gone.URL, t.TempDir(), "", "the mirror cannot be reached; later builds need no " +
			"network"},
		{"an apt without sources", "", t.TempDir(), noSources, "this machine's apt sources have no archive that ends " +
			"in /debian: name one with DEBIAN=URI"},
		{"a cache that is a file", serve(http.StatusOK, content), occupied, "", "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.aptConfig != "" {
				t.Setenv("APT_CONFIG", c.aptConfig)
			}
			a := archive{cache: c.cache, mirrors: map[string]string{"debian": c.mirror}}
			_, err := a.fetch(t.Context(), p)
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), "package iptables 1:2-3 (amd64)") {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if left, _ := os.ReadDir(c.cache); len(left) > 0 {
				t.Errorf("left in the cache: %v", left)
			}
		})
	}
	// And a correct one: requested once, and verified again when the cache was changed.
	a := archive{cache: t.TempDir(), mirrors: map[string]string{"debian": serve(http.StatusOK, content)}}
	asked = 0
	for _, spoil := range []bool{false, false, true} {
		if spoil {
			files, _ := filepath.Glob(a.cache + "/*")
			if len(files) != 1 {
				t.Fatalf("the cache has %v", files)
			}
			if err := os.WriteFile(files[0], []byte("changed"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		file, err := a.fetch(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Errorf("fetched %q, %v", got, err)
		}
	}
	if asked != 2 {
		t.Errorf("the mirror was asked %d times, want 2", asked)
	}
}

// A full disk leaves the previous image, and nothing beside it.
func TestFullDisk(t *testing.T) {
	const child = "KUBE_PROXY_IMAGE_DISK_CHILD"
	if os.Getenv(child) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to make a small file system; make test has it")
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$")
		cmd.Env = append(os.Environ(), child+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0)
	out := filepath.Join(dir, "image.tar")
	if err := os.WriteFile(out, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	index, err := random.Index(1<<20, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := (made{index: index}).save(out, time.Unix(0, 0)); !errors.Is(err, unix.ENOSPC) ||
		!strings.Contains(err.Error(), "write "+out) {
		t.Errorf("error %v", err)
	}
	if have, err := os.ReadDir(dir); err != nil || len(have) != 1 {
		t.Errorf("the folder has %v, %v", have, err)
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "before" {
		t.Errorf("the image is %d bytes, %v", len(text), err)
	}
}
