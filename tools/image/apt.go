package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// suite is the release of Debian that the image takes its packages from.
const suite = "trixie"

// archives of Debian have the packages.
var archives = []string{"debian", "debian-security"}

const (
	aptHelper = "/usr/lib/apt/apt-helper"
	keyring   = "/usr/share/keyrings/debian-archive-keyring.gpg"
)

// archive is the source of packages: this machine's mirrors, and earlier downloads.
type archive struct {
	cache   string
	mirrors map[string]string // by debian and debian-security: those named on the command line
}

// fetch returns the file of a package, from the cache or downloaded. It never returns a file
// without the lock's SHA-256.
func (a archive) fetch(ctx context.Context, p pin) (string, error) {
	file := filepath.Join(a.cache, fmt.Sprintf("%s_%s_%s_%s.deb", p.Name, strings.ReplaceAll(p.Version, ":", "%3a"),
		p.Arch, p.SHA256[:12]))
	have, err := digestOf(file)
	if err == nil && have == p.SHA256 {
		return file, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for package %s in the cache: %w", p, err)
	}
	if err := a.download(ctx, p, file); err != nil {
		return "", fmt.Errorf("download package %s: %w", p, err)
	}
	return file, nil
}

func (a archive) download(ctx context.Context, p pin, file string) error {
	mirror, err := a.mirror(ctx, p.Archive)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.cache, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(a.cache, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	partial := filepath.Join(dir, "package.deb")
	// apt's own downloader, because it uses the proxies and credentials of apt's configuration.
	said, err := output(ctx, aptHelper, "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1", "download-file",
		strings.TrimSuffix(mirror, "/")+"/"+p.Path, partial, "SHA256:"+p.SHA256)
	switch {
	case err != nil && strings.Contains(said, "404  Not Found"): // 404 alone may be a part of the URL
		return fmt.Errorf("%s of this machine's apt sources has it no more: `make image-lock` pins what Debian has "+
			"now, and DEBIAN=URI takes another mirror, such as a snapshot of %s: %w", p.Archive, suite, err)
	case strings.Contains(said, "Hash Sum mismatch"), strings.Contains(said, "unexpected size"):
		return fmt.Errorf("it is not what %s pins (SHA-256 %s): a mirror that is broken or lies, or a lock that was "+
			"edited; `make image-lock` asks Debian's signed index: %w", lockFile, p.SHA256, err)
	case err != nil:
		return fmt.Errorf("it is not in %s, and the mirror cannot be reached; later builds need no network: %w",
			a.cache, err)
	}
	have, err := digestOf(partial)
	if err != nil {
		return err
	}
	if have != p.SHA256 {
		return fmt.Errorf("its SHA-256 is %s, %s has %s", have, lockFile, p.SHA256)
	}
	return os.Rename(partial, file)
}

// mirror returns the address of an archive: of the command line, else of this machine's apt
// sources.
func (a archive) mirror(ctx context.Context, name string) (string, error) {
	if uri := a.mirrors[name]; uri != "" {
		return uri, nil
	}
	flag := strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "=URI"
	said, err := output(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)")
	if err != nil {
		return "", fmt.Errorf("find a mirror in this machine's apt sources: %w: name one with %s", err, flag)
	}
	for uri := range strings.FieldsSeq(said) {
		if path.Base(strings.TrimSuffix(uri, "/")) == name {
			return uri, nil
		}
	}
	return "", fmt.Errorf("this machine's apt sources have no archive that ends in /%s: name one with %s", name, flag)
}

// resolve makes a lock of the versions in Debian's current index. apt checks the index's signature.
func (a archive) resolve(ctx context.Context, now time.Time) (lock, error) {
	dir, err := os.MkdirTemp("", "image-lock-")
	if err != nil {
		return lock{}, err
	}
	defer os.RemoveAll(dir)
	var sources strings.Builder
	for _, name := range archives {
		uri, err := a.mirror(ctx, name)
		if err != nil {
			return lock{}, err
		}
		release := map[string]string{"debian": suite, "debian-security": suite + "-security"}[name]
		fmt.Fprintf(&sources, "deb [arch=%s signed-by=%s] %s %s main\n", strings.Join(architectures, ","), keyring, uri,
			release)
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return lock{}, err
		}
	}
	for name, text := range map[string]string{"sources.list": sources.String(), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return lock{}, err
		}
	}
	options := []string{"-qq", "-o", "Dir::Etc::sourcelist=" + dir + "/sources.list", "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + dir + "/lists",
		"-o", "Dir::State::status=" + dir + "/status", "-o", "Dir::Cache=" + dir + "/cache", "-o",
		"APT::Sandbox::User=root"}
	if _, err := output(ctx, "apt-get", append(options, "update")...); err != nil {
		return lock{}, fmt.Errorf("read Debian's index: %w", err)
	}
	l := lock{head: head{Suite: suite, Time: now.UTC().Truncate(time.Second)}}
	for _, arch := range architectures {
		args := append(options, "-o", "APT::Architecture="+arch, "-o", "APT::Architectures::="+arch, "show",
			"--no-all-versions")
		said, err := output(ctx, "apt-cache", append(args, packages...)...)
		if err != nil {
			return lock{}, fmt.Errorf("ask Debian's index for the packages of %s: %w", arch, err)
		}
		have := map[string]map[string]string{}
		for paragraph := range strings.SplitSeq(said, "\n\n") {
			f := parseControl(paragraph)
			have[f["Package"]] = f
		}
		for _, name := range packages {
			p, err := pinOf(arch, have[name])
			if err != nil {
				return lock{}, fmt.Errorf("package %s for %s in Debian's index: %w", name, arch, err)
			}
			l.pins = append(l.pins, p)
		}
	}
	return l, nil
}

// pinOf makes a pin of a paragraph of an index.
func pinOf(arch string, f map[string]string) (pin, error) {
	p := pin{Arch: arch, Name: f["Package"], Version: f["Version"], SHA256: f["SHA256"], Archive: "debian",
		Path: f["Filename"]}
	if strings.HasPrefix(p.Path, "pool/updates/") {
		p.Archive = "debian-security"
	}
	if p.Name == "" || p.Version == "" || p.SHA256 == "" || p.Path == "" {
		return pin{}, fmt.Errorf("want the fields Package, Version, SHA256 and Filename, have %v", f)
	}
	return p, nil
}

// parseControl reads the fields of a paragraph of Debian's control files; of multi-line fields, the
// first line.
func parseControl(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, " ") {
			fields[name] = strings.TrimSpace(value)
		}
	}
	return fields
}

func digestOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// output runs a program and returns its output; said includes stderr if it failed.
func output(ctx context.Context, name string, args ...string) (said string, err error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	err = cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s is missing: the packages of Debian are read with apt and dpkg-deb, which Debian "+
			"and Ubuntu have: %w", name, err)
	case err != nil:
		return stdout.String() + stderr.String(), fmt.Errorf("%s: %w: %s", path.Base(name), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
