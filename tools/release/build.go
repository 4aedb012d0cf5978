package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// platform is a program on a system.
type platform struct{ program, os, arch string }

// platforms are those of a release: nodes run Linux and Windows, people more.
var platforms = []platform{
	{"kube-proxy", "linux", "amd64"}, {"kube-proxy", "linux", "arm64"},
	{"kube-proxy", "windows", "amd64"}, {"kube-proxy", "windows", "arm64"},
	{"kubectl-svcproxy", "linux", "amd64"}, {"kubectl-svcproxy", "linux", "arm64"},
	{"kubectl-svcproxy", "darwin", "amd64"}, {"kubectl-svcproxy", "darwin", "arm64"},
	{"kubectl-svcproxy", "windows", "amd64"},
}

// file is a file of an archive.
type file struct {
	name string
	mode int64
	body []byte
}

// plan says what a release has.
type plan struct {
	version   string
	url       string // of the folder where the files will be; no manifest for krew if empty
	platforms []platform
	image     []string // arguments for the program that makes images; no image if nil
}

// build writes the files of a release into a folder, which must be empty or absent.
func build(ctx context.Context, p plan, dir string) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s has files already: remove it, or choose another folder", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r := release{version: p.version, url: p.url, dir: dir, materials: map[string]map[string]string{}}
	var err error
	r.commit, err = git(ctx, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	date, err := git(ctx, "show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(date, 10, 64)
	if err != nil {
		return fmt.Errorf("read the time of the commit: %w", err)
	}
	r.committed = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
	for _, on := range p.platforms {
		if err := r.program(ctx, on); err != nil {
			return fmt.Errorf("make the archive of %s for %s/%s: %w", on.program, on.os, on.arch, err)
		}
	}
	if p.url != "" {
		if err := r.krew(p.platforms); err != nil {
			return fmt.Errorf("make the manifest for krew: %w", err)
		}
	}
	if p.image != nil {
		if err := r.image(ctx, p.image); err != nil {
			return fmt.Errorf("make the image: %w", err)
		}
	}
	if err := r.chart(); err != nil {
		return fmt.Errorf("make the archive of the chart: %w", err)
	}
	if err := r.notes(); err != nil {
		return err
	}
	return r.documents()
}

// notes writes the release notes: the section of the version in the changelog.
func (r *release) notes() error {
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, _, _ := strings.Cut(section, "\n")
		if version, _, _ := strings.Cut(title, ","); strings.TrimSpace(version) == r.version {
			return r.write("release-notes.md", []byte("## "+strings.TrimSpace(section)+"\n"))
		}
	}
	return fmt.Errorf("CHANGELOG.md has no section %q", "## "+r.version)
}

// release is a release that is being made.
type release struct {
	version, url, dir string
	commit, committed string                       // committed is in RFC 3339
	golang            string                       // the version that built the programs
	files             []file                       // written so far
	materials         map[string]map[string]string // modules and their versions, by archive
}

func (r *release) write(name string, body []byte) error {
	r.files = append(r.files, file{name: name, body: body})
	return os.WriteFile(filepath.Join(r.dir, name), body, 0o644)
}

// program builds a program for a platform and packs it. The settings are those of every machine.
func (r *release) program(ctx context.Context, p platform) error {
	temp, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	name := p.file()
	built := filepath.Join(temp, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=true", "-trimpath", "-ldflags=-s -w -buildid=", "-o",
		built, "./cmd/"+p.program)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFIPS140=off", "GOFLAGS=-mod=readonly", "GOTOOLCHAIN=local")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
	}
	info, err := buildinfo.ReadFile(built)
	if err != nil {
		return err
	}
	body, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	licence, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	packed, err := pack([]file{{name, 0o755, body}, {"LICENSE", 0o644, licence}})
	if err != nil {
		return err
	}
	archive := r.archive(p)
	modules := map[string]string{"stdlib": strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		modules[m.Path] = m.Version
	}
	r.golang, r.materials[archive] = info.GoVersion, modules
	return r.write(archive, packed)
}

// archive is the name of a program's archive.
func (r *release) archive(p platform) string {
	return fmt.Sprintf("%s-%s-%s-%s.tar.gz", p.program, r.version, p.os, p.arch)
}

// file is the name of a program's file.
func (p platform) file() string {
	if p.os == "windows" {
		return p.program + ".exe"
	}
	return p.program
}

// image has the program of make image make the image, and its bill of materials.
func (r *release) image(ctx context.Context, args []string) error {
	temp, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	// The program makes a folder "image" beside the image.
	program, made := filepath.Join(temp, "program"), filepath.Join(temp, "kube-proxy-image-"+r.version+".tar")
	for _, line := range [][]string{{"go", "-C", "tools", "build", "-o", program, "./image"},
		append([]string{program, "-o", made, "-tag", r.version}, args...)} {
		if said, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
		}
	}
	files, err := filepath.Glob(filepath.Join(temp, "kube-proxy-image-*"))
	if err != nil {
		return err
	}
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err == nil {
			err = r.write(filepath.Base(name), body)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chart packs the chart. Its links lead to files beside it, which become files in it.
func (r *release) chart() error {
	const root = "charts/kube-proxy"
	var files []file
	var add func(dir, as string) error
	add = func(dir, as string) error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			from, name := filepath.Join(dir, e.Name()), path.Join(as, e.Name())
			info, err := os.Stat(from) // follows a link
			switch {
			case err != nil:
				return err
			case info.IsDir():
				err = add(from, name)
			default:
				var body []byte
				body, err = os.ReadFile(from)
				files = append(files, file{name, 0o644, body})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(root, "kube-proxy"); err != nil {
		return err
	}
	packed, err := pack(files)
	if err != nil {
		return err
	}
	return r.write("kube-proxy-chart-"+r.version+".tgz", packed)
}

// pack returns an archive of the files by name, without times and owners, so that two are equal.
func pack(files []file) ([]byte, error) {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zip)
	for _, f := range files {
		if !fs.ValidPath(f.name) {
			return nil, fmt.Errorf("the name %q is no path in an archive", f.name)
		}
		if err := w.WriteHeader(&tar.Header{Name: f.name, Size: int64(len(f.body)), Mode: f.mode}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.body); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
