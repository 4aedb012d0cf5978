package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// platforms are those of the image.
var platforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"},
	{OS: "windows", Architecture: "amd64"}}

// content is the content of the image for one platform.
type content struct {
	platform v1.Platform
	program  program
	packages []debianPackage
	debian   v1.Layer // iptables, ipset, and their dependencies; nil on Windows
	binary   v1.Layer
	err      error
}

// makeContents does the slow part, for all platforms side by side.
func makeContents(ctx context.Context, o options, l lock, when time.Time) ([]*content, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var contents []*content
	for _, p := range platforms {
		c := &content{platform: p}
		contents = append(contents, c)
		wg.Go(func() {
			c.err = c.make(ctx, o, l, when)
			if c.err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var errs []error
	for _, c := range contents {
		if c.err != nil && !errors.Is(c.err, context.Canceled) {
			errs = append(errs, c.err)
		}
	}
	return contents, cmp.Or(errors.Join(errs...), ctx.Err())
}

func (c *content) make(ctx context.Context, o options, l lock, when time.Time) error {
	var own tree
	var err error
	c.program, err = compile(ctx, filepath.Join(filepath.Dir(o.out), "image"), c.platform)
	if err != nil {
		return err
	}
	if c.platform.OS == "windows" {
		own, err = windowsTree(c.program.body, c.program.texts)
	} else {
		own, err = ownTree(c.program)
	}
	if err != nil {
		return err
	}
	c.binary, err = own.layer(when)
	if err != nil || c.platform.OS == "windows" {
		return err
	}
	debian, pkgs, err := debianTree(ctx, o.archive, l, c.platform.Architecture)
	if err != nil {
		return err
	}
	c.packages = pkgs
	c.debian, err = debian.layer(l.Time)
	return err
}

// ownTree returns the files of the layer that both tags have.
func ownTree(p program) (t tree, err error) {
	t = tree{}
	add := func(name string, mode int64, body []byte) {
		err = errors.Join(err, t.add(name, file{mode: mode, body: body}))
	}
	add(binaryPath, 0o755, p.body)
	add("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"))
	add("etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n"))
	for _, name := range sortedKeys(p.texts) {
		add(name, 0o644, p.texts[name])
	}
	return t, err
}

// made is an image with its bill of materials, and the lines to print.
type made struct {
	index    v1.ImageIndex // of the tags
	bill     []byte
	reported []string
}

// assemble makes both tags. That for Windows is the same in both: no mode needs another program
// there.
func assemble(o options, commit string, when time.Time, contents []*content) (made, error) {
	var m made
	b := newBill(o.name+":"+o.tag, when)
	var tags []mutate.IndexAddendum
	for _, t := range []struct {
		tag, description string
		debian           bool
	}{
		{o.tag, "Service proxy of a Kubernetes node, for all modes", true},
		{o.tag + minimal, "Service proxy of a Kubernetes node, for the modes that need no other program", false},
	} {
		var images []mutate.IndexAddendum
		var labels map[string]string
		for _, c := range contents {
			parts, pkgs := []part{{c.binary, "make image: kube-proxy"}}, []debianPackage(nil)
			if t.debian && c.debian != nil {
				parts, pkgs = append([]part{{c.debian, "make image: packages of Debian"}}, parts...), c.packages
			}
			licences := licencesOf(c.program, pkgs)
			labels = map[string]string{
				"org.opencontainers.image.title":       "kube-proxy",
				"org.opencontainers.image.description": t.description,
				"org.opencontainers.image.version":     o.tag,
				"org.opencontainers.image.revision":    cmp.Or(commit, "unknown"),
				"org.opencontainers.image.created":     when.Format(time.RFC3339),
				"org.opencontainers.image.licenses":    licences,
			}
			config := v1.Config{Entrypoint: []string{windowsProgram}, Labels: labels}
			if c.platform.OS != "windows" {
				config.Entrypoint = []string{"/" + binaryPath}
				config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
			}
			img, err := newImage(c.platform, when, config, parts)
			if err != nil {
				return made{}, err
			}
			digest, err := img.Digest()
			if err != nil {
				return made{}, err
			}
			b.image(o.name, t.tag, c.platform, digest, c.program, pkgs, licences)
			images = append(images, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &c.platform}})
			size := int64(0)
			for _, p := range parts {
				n, err := p.layer.Size()
				if err != nil {
					return made{}, err
				}
				size += n
			}
			m.reported = append(m.reported, fmt.Sprintf("  %s:%s %s: %.1f MiB", o.name, t.tag, c.platform,
				float64(size)/(1<<20)))
		}
		index := mutate.Annotations(indexOf(images...), labels).(v1.ImageIndex)
		digest, err := index.Digest()
		if err != nil {
			return made{}, err
		}
		tags = append(tags, tagged(o.name+":"+t.tag, index))
		m.reported = append(m.reported, fmt.Sprintf("  %s:%s %s", o.name, t.tag, digest))
	}
	m.index = indexOf(tags...)
	var err error
	m.bill, err = b.text()
	return m, err
}

// licencesOf joins the known licences of the contents of an image.
func licencesOf(p program, pkgs []debianPackage) string {
	ids := []string{"Apache-2.0"}
	for _, m := range p.modules {
		if m.licence != "" {
			ids = append(ids, m.licence)
		}
	}
	for _, d := range pkgs {
		if d.licence != "" {
			ids = append(ids, d.licence)
		}
	}
	return conjunction(ids)
}

// billFile returns the path of an archive's bill of materials.
func billFile(out string) string { return strings.TrimSuffix(out, ".tar") + ".spdx.json" }

// save writes both files completely, or leaves the existing ones.
func (m made) save(out string, when time.Time) error {
	tar, err := writeBeside(out, func(w io.Writer) error { return writeArchive(w, m.index, filepath.Dir(out), when) })
	if err != nil {
		return err
	}
	defer os.Remove(tar)
	bill, err := writeBeside(billFile(out), func(w io.Writer) error { _, err := w.Write(m.bill); return err })
	if err != nil {
		return err
	}
	defer os.Remove(bill)
	return errors.Join(os.Rename(tar, out), os.Rename(bill, billFile(out)))
}

// writeBeside writes a file under another name in the same folder, and returns that name.
func writeBeside(file string, write func(io.Writer) error) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-")
	if err != nil {
		return "", fmt.Errorf("write %s: %w", file, err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = errors.Join(write(w), w.Flush(), f.Chmod(0o644), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write %s: %w: nothing was changed there", file, err)
	}
	return f.Name(), nil
}
