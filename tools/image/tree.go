package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// file is a file of the image: a directory if mode says so, a link if link is not empty.
type file struct {
	mode int64 // permissions; never setuid
	link string
	body []byte
	dir  bool
}

// tree is a part of the image's files, by their names without a slash in front.
type tree map[string]file

// add puts a file into the tree, and the folders that it is in. Two files of one name must be
// equal.
func (t tree) add(name string, f file) error {
	if have, ok := t[name]; ok && (have.link != f.link || have.dir != f.dir || have.mode != f.mode ||
		!bytes.Equal(have.body, f.body)) {
		return fmt.Errorf("file /%s is there twice, and not the same", name)
	}
	t[name] = f
	for d := path.Dir(name); d != "."; d = path.Dir(d) {
		have, ok := t[d]
		if ok && !have.dir {
			return fmt.Errorf("file /%s is in /%s, which is no folder", name, d)
		}
		t[d] = file{mode: 0o755, dir: true}
	}
	return nil
}

// names returns the names in order.
func (t tree) names() []string { return slices.Sorted(maps.Keys(t)) }

// walk returns the links in the path of a name and at its end, and the name of their target, "" if
// it does not exist.
func (t tree) walk(name string) (links []string, end string) {
	for range 40 { // as many as the kernel follows
		at, rest, link := "", strings.Split(path.Clean("/" + name)[1:], "/"), ""
		for len(rest) > 0 && link == "" {
			at, rest = path.Join(at, rest[0]), rest[1:]
			link = t[at].link
		}
		if link == "" {
			if _, ok := t[at]; ok {
				return links, at
			}
			return links, ""
		}
		links = append(links, at)
		if !path.IsAbs(link) {
			link = path.Join("/", path.Dir(at), link)
		}
		name = path.Join(append([]string{link}, rest...)...)
	}
	return links, ""
}

// needs returns the requirements of a program or library: its loader's path, and names of
// libraries. For a file that is no ELF file it returns nothing.
func (f file) needs() (loader string, libraries []string, err error) {
	if !bytes.HasPrefix(f.body, []byte(elf.ELFMAG)) {
		return "", nil, nil
	}
	e, err := elf.NewFile(bytes.NewReader(f.body))
	if err != nil {
		return "", nil, err
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				return "", nil, err
			}
			loader = strings.TrimRight(string(b), "\x00")
		}
	}
	libraries, err = e.ImportedLibraries()
	return loader, libraries, err
}

// link adds the requirements of the tree's programs from a larger tree: their loader, their
// libraries, and those of the libraries. dir is the loader's library path.
func (t tree) link(from tree, dir string) error {
	done := map[string]bool{}
	for {
		before := len(done)
		for _, name := range t.names() {
			if done[name] {
				continue
			}
			done[name] = true
			loader, libraries, err := t[name].needs()
			if err != nil {
				return fmt.Errorf("read /%s: %w", name, err)
			}
			if loader != "" {
				libraries = append(libraries, loader)
			}
			for _, l := range libraries {
				if !path.IsAbs(l) {
					l = path.Join(dir, l)
				}
				if err := t.take(from, l); err != nil {
					return fmt.Errorf("/%s needs %s: %w", name, l, err)
				}
			}
		}
		if len(done) == before {
			return nil
		}
	}
}

// take adds a file of a larger tree, with the links to it.
func (t tree) take(from tree, name string) error {
	links, end := from.walk(name)
	if end == "" {
		return fmt.Errorf("no package of %s has it: add the one that has it to packages in image/debian.go, and "+
			"`make image-lock`", lockFile)
	}
	for _, n := range append(links, end) {
		if err := t.add(n, from[n]); err != nil {
			return err
		}
	}
	return nil
}
