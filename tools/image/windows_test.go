package main

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// The image for Windows has the program, the texts and five hives below Files/, and nothing else.
func TestWindowsTree(t *testing.T) {
	tree, err := windowsTree([]byte("MZ"), map[string][]byte{docFolder + "copyright": []byte("Apache-2.0")})
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, name := range tree.names() {
		if !tree[name].dir {
			files = append(files, name)
		}
	}
	want := []string{"Files/Windows/System32/config/DEFAULT", "Files/Windows/System32/config/SAM",
		"Files/Windows/System32/config/SECURITY",
		"Files/Windows/System32/config/SOFTWARE", "Files/Windows/System32/config/SYSTEM", "Files/kube-proxy/copyright",
		"Files/kube-proxy/kube-proxy.exe"}
	if !slices.Equal(files, want) {
		t.Errorf("%v, want %v", files, want)
	}
}

// A hive is one that Windows would load: the checksum is right, and the cells fill the bin.
func TestHive(t *testing.T) {
	h := hive("SYSTEM")
	sum := uint32(0)
	for at := 0; at < 512; at += 4 {
		sum ^= binary.LittleEndian.Uint32(h[at:])
	}
	if len(h) != 2*page || sum != 0 || !bytes.HasPrefix(h, []byte("regf")) ||
		!bytes.HasPrefix(h[page:], []byte("hbin")) {
		t.Fatalf("%d bytes, checksum off by %x", len(h), sum)
	}
	var kinds []string
	for at := page + 0x20; at < len(h); {
		size := int(int32(binary.LittleEndian.Uint32(h[at:])))
		kind := string(h[at+4 : at+6])
		if size > 0 {
			kind = "free"
		}
		size = max(size, -size)
		if size < 8 || size%8 != 0 || at+size > len(h) {
			t.Fatalf("a cell of %d bytes at %d", size, at)
		}
		kinds = append(kinds, kind)
		at += size
	}
	if !slices.Equal(kinds, []string{"nk", "sk", "free"}) {
		t.Errorf("cells %v", kinds)
	}
}
