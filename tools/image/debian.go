package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// packages are the packages of the image. Dependencies are found in their programs; a missing
// package is an error.
var packages = []string{
	"base-files", "iptables", "ipset",
	"libc6", "libip4tc2", "libip6tc2", "libipset13t64", "libmnl0", "libnetfilter-conntrack3", "libnfnetlink0",
	"libnftnl11", "libxtables12",
}

// wanted are patterns of the files that the image uses of the packages. Libraries are added
// automatically.
var wanted = slices.Concat([]string{
	"etc/os-release", "usr/lib/os-release",
	"usr/sbin/ipset",
	// All extensions, to read the rules of other programs; except those of arptables and ebtables.
	"usr/lib/*/xtables/libxt_*.so", "usr/lib/*/xtables/libipt_*.so", "usr/lib/*/xtables/libip6t_*.so",
	// The licences that the packages' copyright files point to.
	"usr/share/common-licenses/*",
}, iptablesPrograms())

// iptablesPrograms are the names under which modes iptables and ipvs look for both back ends. The
// plain names, which are of one of the back ends, are left out: the proxy detects the node's back
// end.
func iptablesPrograms() (names []string) {
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, backend := range []string{"nft", "legacy"} {
			for _, suffix := range []string{"", "-restore", "-save"} {
				names = append(names, "usr/sbin/"+family+"-"+backend+suffix)
			}
		}
	}
	return names
}

// triplets are Debian's names for the folders of libraries.
var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// debianPackage is the image's record of a package.
type debianPackage struct {
	pin
	source, sourceVersion string
	licences              []string // as Debian calls them
	licence               string   // in SPDX's notation, or ""
}

// debianTree returns the files of the layer for the modes iptables and ipvs, and their packages.
func debianTree(ctx context.Context, a archive, l lock, arch string) (tree, []debianPackage, error) {
	all, owner := tree{}, map[string]string{}
	// As the package usrmerge leaves them.
	for _, d := range []string{"lib", "lib64", "bin", "sbin"} {
		all[d] = file{link: "usr/" + d, mode: 0o777}
	}
	found := map[string]debianPackage{}
	controls := map[string][]byte{}
	for _, p := range l.of(arch) {
		deb, err := a.fetch(ctx, p)
		if err != nil {
			return nil, nil, err
		}
		files, err := readDeb(ctx, deb, "--fsys-tarfile")
		if err != nil {
			return nil, nil, fmt.Errorf("read package %s: %w", p, err)
		}
		for name, f := range files {
			if f.dir {
				continue
			}
			if err := all.add(name, f); err != nil {
				return nil, nil, fmt.Errorf("package %s: %w", p, err)
			}
			owner[name] = p.Name
		}
		control, err := readDeb(ctx, deb, "--ctrl-tarfile")
		if err != nil {
			return nil, nil, fmt.Errorf("read package %s: %w", p, err)
		}
		controls[p.Name] = control["control"].body
		found[p.Name] = describe(p, parseControl(string(control["control"].body)))
	}

	t := tree{}
	for _, pattern := range wanted {
		if err := t.takeAll(all, pattern); err != nil {
			return nil, nil, fmt.Errorf("packages for %s: %w", arch, err)
		}
	}
	if err := t.link(all, "usr/lib/"+triplets[arch]); err != nil {
		return nil, nil, fmt.Errorf("packages for %s: %w", arch, err)
	}
	used := map[string]bool{}
	for name := range t {
		if o := owner[name]; o != "" {
			used[o] = true
		}
	}
	var pkgs []debianPackage
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if !used[name] {
			return nil, nil, fmt.Errorf("packages for %s: nothing of %s is used: take it from packages in "+
				"image/debian.go", arch, name)
		}
		doc := "usr/share/doc/" + name + "/copyright"
		if err := t.take(all, doc); err != nil {
			return nil, nil, fmt.Errorf("package %s: /%s: %w", name, doc, err)
		}
		// Scanners look here for packages in images without dpkg.
		if err := t.add("var/lib/dpkg/status.d/"+name, file{mode: 0o644, body: controls[name]}); err != nil {
			return nil, nil, err
		}
		p := found[name]
		_, end := t.walk(doc)
		p.licences, p.licence = debianLicences(string(t[end].body))
		pkgs = append(pkgs, p)
	}
	return t, pkgs, nil
}

// takeAll adds the files that match a pattern, at least one.
func (t tree) takeAll(from tree, pattern string) error {
	some := false
	for _, name := range from.names() {
		if ok, _ := path.Match(pattern, name); !ok || from[name].dir {
			continue
		}
		some = true
		if err := t.take(from, name); err != nil {
			return err
		}
	}
	if !some {
		return fmt.Errorf("none has /%s", pattern)
	}
	return nil
}

func describe(p pin, control map[string]string) debianPackage {
	d := debianPackage{pin: p, source: p.Name, sourceVersion: p.Version}
	if source, version, _ := strings.Cut(control["Source"], " "); source != "" {
		d.source = source
		if v := strings.Trim(version, "()"); v != "" {
			d.sourceVersion = v
		}
	}
	return d
}

// readDeb returns the files of a package, or those about it.
func readDeb(ctx context.Context, deb, what string) (tree, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", what, deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: dpkg-deb reads the packages of Debian, and is there on Debian and Ubuntu", err)
	}
	t, err := readTar(out)
	if err != nil {
		cancel()
	}
	if e := cmd.Wait(); e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(err, fmt.Errorf("%w: %s", e, strings.TrimSpace(stderr.String())))
	}
	return t, err
}

// readTar reads an archive of files, folders and links. It keeps no owner, time or setuid bit.
func readTar(r io.Reader) (tree, error) {
	t := tree{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // the padding of the last block, for the writer
			return t, err
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean("/" + h.Name)[1:]
		f := file{mode: h.Mode & 0o777}
		switch h.Typeflag {
		case tar.TypeDir:
			f.dir = true
		case tar.TypeSymlink:
			f.link = h.Linkname
		case tar.TypeReg:
			f.body, err = io.ReadAll(tr)
			if err != nil {
				return nil, err
			}
		case tar.TypeLink: // its target came before
			f = t[path.Clean("/" + h.Linkname)[1:]]
		default:
			return nil, fmt.Errorf("file /%s is of type %q, want a file, a folder or a link", name, h.Typeflag)
		}
		if name != "" {
			t[name] = f
		}
	}
}
