package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// binaryPath is where upstream's image has the program.
const binaryPath = "usr/local/bin/kube-proxy"

// goModule is a module that is linked into the binary.
type goModule struct {
	path, version string
	licence       string // in SPDX's notation, or ""
}

// program is the binary for one platform, with its contents.
type program struct {
	body    []byte
	golang  string // the version of Go that built it
	modules []goModule
	texts   map[string][]byte // licences, by where they go in the image for Linux
}

// compile builds the binary. dir keeps it, so that an unchanged one is not linked again.
func compile(ctx context.Context, dir string, on v1.Platform) (program, error) {
	out := filepath.Join(dir, on.OS+"-"+on.Architecture, "kube-proxy")
	// The commit in the binary, if git has it, whatever GOFLAGS is.
	stamp := fmt.Sprintf("-buildvcs=%t", git(ctx, "rev-parse", "HEAD") != "")
	cmd := goCommand(ctx, on, "build", stamp, "-trimpath", "-ldflags=-s -w", "-o", out, "./cmd/kube-proxy")
	if said, err := cmd.CombinedOutput(); err != nil {
		return program{}, fmt.Errorf("build kube-proxy for %s: %w: %s", on, err, strings.TrimSpace(string(said)))
	}
	info, err := buildinfo.ReadFile(out)
	if err != nil {
		return program{}, fmt.Errorf("read what was built for %s: %w", on, err)
	}
	p := program{golang: info.GoVersion}
	p.body, err = os.ReadFile(out)
	if err != nil {
		return program{}, err
	}
	p.texts, err = licenceTexts(ctx, on)
	if err != nil {
		return program{}, fmt.Errorf("find the licences of the modules for %s: %w", on, err)
	}
	p.texts[docFolder+"copyright"], err = os.ReadFile("LICENSE")
	if err != nil {
		return program{}, err
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		mod := goModule{path: m.Path, version: m.Version, licence: licenceOf(p.texts, licenceDir(m.Path)+"/")}
		p.modules = append(p.modules, mod)
	}
	p.modules = append(p.modules,
		goModule{path: "stdlib", version: strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go"),
			licence: licenceOf(p.texts, licenceDir("stdlib")+"/")})
	for _, m := range p.modules {
		if !slices.ContainsFunc(sortedKeys(p.texts),
			func(name string) bool { return strings.HasPrefix(name, licenceDir(m.path)+"/") }) {
			return program{}, fmt.Errorf("module %s %s has no licence beside its code: it may not be passed on", m.path,
				m.version)
		}
	}
	return p, nil
}

// goCommand runs go for a platform of the image, with the same settings on every machine.
func goCommand(ctx context.Context, on v1.Platform, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+on.OS, "GOARCH="+on.Architecture, "GOAMD64=v1",
		"GOARM64=v8.0", "GOFIPS140=off", "GOFLAGS=-mod=readonly")
	return cmd
}

// docFolder has the licences in the image for Linux.
const docFolder = "usr/share/doc/kube-proxy/"

// licenceDir is where the licences of a module go there.
func licenceDir(module string) string { return docFolder + "licences/" + module }

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-].*)?$`)

// licenceTexts returns the licences of Go and of all packages in the binary: those in the folder of
// each, and in its parents up to the module's.
func licenceTexts(ctx context.Context, on v1.Platform) (map[string][]byte, error) {
	cmd := goCommand(ctx, on, "list", "-deps", "-f", "{{with .Module}}{{if not "+
		".Main}}{{.Path}}\t{{.Dir}}{{end}}{{end}}\t{{.Dir}}", "./cmd/kube-proxy")
	said, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	} else if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	root, err := goCommand(ctx, on, "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	texts := map[string][]byte{}
	lines := append(strings.Split(string(said), "\n"), fmt.Sprintf("stdlib\t%[1]s\t%[1]s",
		strings.TrimSpace(string(root))))
	seen := map[string]bool{}
	for _, line := range lines {
		f := strings.Split(line, "\t")
		if len(f) != 3 {
			continue // of the standard library, or of the program itself
		}
		module, top := f[0], f[1]
		for dir := f[2]; !seen[dir] && strings.HasPrefix(dir, top); dir = filepath.Dir(dir) {
			seen[dir] = true
			if err := addLicences(texts, module, top, dir); err != nil {
				return nil, err
			}
		}
	}
	return texts, nil
}

func addLicences(texts map[string][]byte, module, top, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	below, err := filepath.Rel(top, dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !licenceName.MatchString(e.Name()) || e.Type()&fs.ModeType != 0 || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		texts[filepath.ToSlash(filepath.Join(licenceDir(module), below, e.Name()))] = body
	}
	return nil
}
