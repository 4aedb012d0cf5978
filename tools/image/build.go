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
)

// half is what the image has for one architecture.
type half struct {
	arch     string
	program  program
	packages []debianPackage
	debian   layer // iptables, ipset, and what they need
	binary   layer
	err      error
}

// makeHalves does the slow part, for both architectures side by side.
func makeHalves(ctx context.Context, o options, l lock, when time.Time) ([]*half, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var halves []*half
	for _, arch := range architectures {
		h := &half{arch: arch}
		halves = append(halves, h)
		wg.Go(func() {
			if h.err = h.make(ctx, o, l, when); h.err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	var errs []error
	for _, h := range halves {
		if h.err != nil && !errors.Is(h.err, context.Canceled) {
			errs = append(errs, h.err)
		}
	}
	return halves, cmp.Or(errors.Join(errs...), ctx.Err())
}

func (h *half) make(ctx context.Context, o options, l lock, when time.Time) error {
	debian, pkgs, err := debianTree(ctx, o.archive, l, h.arch)
	if err != nil {
		return err
	}
	h.packages = pkgs
	if h.debian, err = debian.pack(l.time); err != nil {
		return err
	}
	if h.program, err = compile(ctx, filepath.Join(filepath.Dir(o.out), "image"), h.arch); err != nil {
		return err
	}
	own, err := ownTree(h.program)
	if err != nil {
		return err
	}
	h.binary, err = own.pack(when)
	return err
}

// ownTree returns the files of the layer that both tags have.
func ownTree(p program) (tree, error) {
	licence, err := os.ReadFile("LICENSE")
	if err != nil {
		return nil, err
	}
	t := tree{}
	add := func(name string, mode int64, body []byte) {
		err = errors.Join(err, t.add(name, file{mode: mode, body: body}))
	}
	add(binaryPath, 0o755, p.body)
	add("etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"))
	add("etc/group", 0o644, []byte("root:x:0:\nnonroot:x:65532:\n"))
	add("usr/share/doc/kube-proxy/copyright", 0o644, licence)
	for _, name := range sortedKeys(p.texts) {
		add(name, 0o644, p.texts[name])
	}
	return t, err
}

// made is an image with its bill of materials, and what is told of it.
type made struct {
	layout layout
	bill   []byte
	told   []string
}

// assemble makes both tags of both halves.
func assemble(o options, commit string, when time.Time, halves []*half) (made, error) {
	var m made
	b := newBill(o.name+":"+o.tag, when)
	for _, t := range []struct {
		tag, description string
		debian           bool
	}{
		{o.tag, "Service proxy of a Kubernetes node, for all modes", true},
		{o.tag + minimal, "Service proxy of a Kubernetes node, for the modes that need no other program", false},
	} {
		var images []descriptor
		var labels map[string]string
		for _, h := range halves {
			parts, pkgs := []part{{h.binary, "make image: kube-proxy"}}, []debianPackage(nil)
			if t.debian {
				parts, pkgs = append([]part{{h.debian, "make image: packages of Debian"}}, parts...), h.packages
			}
			licences := licencesOf(h.program, pkgs)
			labels = map[string]string{
				"org.opencontainers.image.title":       "kube-proxy",
				"org.opencontainers.image.description": t.description,
				"org.opencontainers.image.version":     o.tag,
				"org.opencontainers.image.revision":    cmp.Or(commit, "unknown"),
				"org.opencontainers.image.created":     when.Format(time.RFC3339),
				"org.opencontainers.image.licenses":    licences,
			}
			d, err := m.layout.image(h.arch, when, labels, parts)
			if err != nil {
				return made{}, err
			}
			b.image(o.name, t.tag, h.arch, d, h.program, pkgs, licences)
			images = append(images, d)
			size := 0
			for _, p := range parts {
				size += len(p.body)
			}
			m.told = append(m.told, fmt.Sprintf("  %s:%s linux/%s: %.1f MiB", o.name, t.tag, h.arch, float64(size)/(1<<20)))
		}
		digest, err := m.layout.tag(o.name+":"+t.tag, labels, images)
		if err != nil {
			return made{}, err
		}
		m.told = append(m.told, fmt.Sprintf("  %s:%s %s", o.name, t.tag, digest))
	}
	var err error
	m.bill, err = b.text()
	return m, err
}

// licencesOf joins the licences that are known of what is in an image.
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

// billFile is where the bill of materials of an archive goes.
func billFile(out string) string { return strings.TrimSuffix(out, ".tar") + ".spdx.json" }

// save writes both files whole, or leaves those that are there.
func (m made) save(out string, when time.Time) error {
	tar, err := writeBeside(out, func(w io.Writer) error { return m.layout.write(w, when) })
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
	if err = errors.Join(write(w), w.Flush(), f.Chmod(0o644), f.Close()); err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write %s: %w: nothing was changed there", file, err)
	}
	return f.Name(), nil
}
