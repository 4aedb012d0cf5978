package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func plain(text string) file { return file{mode: 0o644, body: []byte(text)} }

func TestWalk(t *testing.T) {
	all := tree{
		"lib64": {link: "usr/lib64"}, "usr/lib64/ld.so": {link: "../lib/x/ld.so"}, "usr/lib/x/ld.so": plain("ld"),
		"etc/a": {link: "/usr/lib/x/ld.so"}, "a": {link: "b"}, "b": {link: "a"}, "out": {link: "../../usr/lib/x/ld.so"},
	}
	for _, c := range []struct {
		name, end string
		links     []string
	}{
		{"/lib64/ld.so", "usr/lib/x/ld.so", []string{"lib64", "usr/lib64/ld.so"}},
		{"etc/a", "usr/lib/x/ld.so", []string{"etc/a"}},
		{"out", "usr/lib/x/ld.so", []string{"out"}}, // the root's parent is the root
		{"usr/lib/x/none", "", nil},
		{"a", "", nil},
	} {
		links, end := all.walk(c.name)
		if end != c.end || c.links != nil && !slices.Equal(links, c.links) {
			t.Errorf("%s leads over %v to %q, want %v, %q", c.name, links, end, c.links, c.end)
		}
	}
}

func TestTreeConflicts(t *testing.T) {
	t1 := tree{}
	if err := t1.add("usr/x", plain("1")); err != nil {
		t.Fatal(err)
	}
	if err := t1.add("usr/x", plain("1")); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := t1.add("usr/x", plain("2")); err == nil || !strings.Contains(err.Error(), "/usr/x is there twice") {
		t.Errorf("another file of that name: %v", err)
	}
	if err := t1.add("usr/x/y", plain("3")); err == nil ||
		!strings.Contains(err.Error(), "is in /usr/x, which is no folder") {
		t.Errorf("a file in a file: %v", err)
	}
	if err := (tree{}).take(t1, "usr/z"); err == nil ||
		!strings.Contains(err.Error(), "add the one that has it to packages in image/debian.go") {
		t.Errorf("a file that no package has: %v", err)
	}
}

// A layer does not depend on the order of its files, and has only root's files of one time.
func TestPack(t *testing.T) {
	when := time.Unix(1700000000, 0)
	var digests []string
	for _, names := range [][]string{{"b/c", "a", "b/d"}, {"b/d", "b/c", "a"}} {
		files := tree{}
		for _, n := range names {
			if err := files.add(n, plain(n)); err != nil {
				t.Fatal(err)
			}
		}
		l, err := files.layer(when)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := l.Digest()
		plain, e := l.DiffID()
		err = errors.Join(err, e)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest.String(), plain.String())
	}
	if digests[0] != digests[2] || digests[1] != digests[3] || digests[0] == digests[1] {
		t.Errorf("digests %v", digests)
	}
}

// A package's owners, times and setuid bits do not get into the image, and no device does.
func TestReadTar(t *testing.T) {
	if _, err := readTar(strings.NewReader("no archive, but longer than a block of one is. " +
		strings.Repeat("x", 1000))); err == nil {
		t.Error("garbage is read")
	}
	files := tree{"dir/x": {mode: 0o755, body: []byte("x")}, "link": {link: "dir/x", mode: 0o777},
		"dir": {dir: true, mode: 0o755}}
	p := readPlatform{files: tree{}}
	l, err := files.layer(time.Unix(0, 0))
	if err == nil {
		err = p.addLayer(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(p.files) != 3 || !bytes.Equal(p.files["dir/x"].body, []byte("x")) || p.files["link"].link != "dir/x" ||
		!p.files["dir"].dir {
		t.Errorf("read again: %v", p.files)
	}
}

func TestLicences(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"Apache License\n   Version 2.0, January 2004", "Apache-2.0"},
		{"Permission is hereby granted, free of charge, to any person\nobtaining a copy", "MIT"},
		{"Redistribution and use in source and binary forms, with or without modification ... to endorse or promote " +
			"products derived from this software", "BSD-3-Clause"},
		{"Redistribution and use in source and binary forms, with or without modification", "BSD-2-Clause"},
		{"All rights reserved.", ""},
	} {
		if got := classify(c.text); got != c.want {
			t.Errorf("%q is %q, want %q", c.text, got, c.want)
		}
	}
	for _, c := range []struct{ text, want, names string }{
		{"Format: x\nFiles: *\nLicense: GPL-2+\n text\n\nFiles: y\nLicense: LGPL-2.1+ and Expat\n",
			"GPL-2.0-or-later AND LGPL-2.1-or-later AND MIT", "Expat, GPL-2+, LGPL-2.1+"},
		{"Format: x\nFiles: *\nLicense: GPL-2+ with exception of ours\n", "", "GPL-2+ with exception of ours"},
		{"Format: x\nLicense: custom\nLicense: GPL-2\n", "", "GPL-2, custom"},
		{"This package was debianized by hand.\nLicense: GPL-2\n", "", ""},
	} {
		names, got := debianLicences(c.text)
		if got != c.want || strings.Join(names, ", ") != c.names {
			t.Errorf("%q is %q, called %q; want %q, %q", c.text, got, names, c.want, c.names)
		}
	}
}
