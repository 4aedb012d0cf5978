package main

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

// windowsProgram is the program in the image for Windows, below the folder of the container.
const windowsProgram = "kube-proxy/kube-proxy.exe"

// windowsDocs has the licences there.
const windowsDocs = "kube-proxy/"

// windowsTree returns the one layer of the image for windows/amd64, which HostProcess containers
// run on every version of Windows Server: this program, its licences and nothing of Windows. A
// layer of Windows has its files below Files/. The first layer of an image must have the five hives
// of a registry, though a HostProcess container uses the node's; Windows Server 2025 refuses empty
// files in their place.
func windowsTree(program []byte, texts map[string][]byte) (tree, error) {
	t := tree{}
	if err := t.add("Files/"+windowsProgram, file{mode: 0o755, body: program}); err != nil {
		return nil, err
	}
	for _, name := range []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"} {
		if err := t.add("Files/Windows/System32/config/"+name, file{mode: 0o644, body: hive(name)}); err != nil {
			return nil, err
		}
	}
	for name, text := range texts {
		if err := t.add("Files/"+windowsDocs+strings.TrimPrefix(name, docFolder),
			file{mode: 0o644, body: text}); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// A hive has a header and bins of a page each.
const page = 4096

// hive returns a registry hive with a root key that has no values, of version 1.3.
func hive(name string) []byte {
	h := make([]byte, 2*page)
	le := binary.LittleEndian
	put := func(at int, values ...uint32) {
		for i, v := range values {
			le.PutUint32(h[at+4*i:], v)
		}
	}
	const none = 0xffffffff
	// Offsets within the bin, which begins with a header of 32 bytes: the root key and its
	// security.
	const key, keySize, security, securitySize = 0x20, 0x58, 0x78, 0x38

	copy(h, "regf")
	put(4, 1, 1)                      // both sequence numbers are equal: it was closed in order
	put(20, 1, 3, 0, 1, key, page, 1) // version, type and form, root key, size of all bins, clustering
	for i, c := range utf16.Encode([]rune(name)) {
		le.PutUint16(h[48+2*i:], c)
	}
	sum := uint32(0)
	for at := 0; at < 508; at += 4 {
		sum ^= le.Uint32(h[at:])
	}
	put(508, sum)

	bin := page
	copy(h[bin:], "hbin")
	put(bin+4, 0, page)

	cell := bin + key
	size := -keySize // a cell in use has a negative size
	put(cell, uint32(int32(size)))
	copy(h[cell+4:], "nk")
	le.PutUint16(h[cell+6:], 0x2c) // the root of a hive, not to be deleted, with a name of one byte a letter
	put(cell+20, none, 0, 0, none, none, 0, none, security, none)
	le.PutUint16(h[cell+76:], 4) // length of the name
	copy(h[cell+80:], "ROOT")

	cell = bin + security
	size = -securitySize
	put(cell, uint32(int32(size)))
	copy(h[cell+4:], "sk")
	put(cell+8, security, security, 1, 32) // the only one in its list, used once; a descriptor of 32 bytes follows
	put(cell+24, 0x80000001, 20, 20)       // revision 1, self-relative, without lists; owner and group
	put(cell+44, 0x101, 0x05000000, 18)    // of it: S-1-5-18, the system

	put(bin+security+securitySize, page-security-securitySize) // the rest is free
	return h
}
