package wine

import (
	"debug/pe"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file of Windows is a file of ours, under either name, and a machine is one of Windows.
func TestMachine(t *testing.T) {
	m := New(t)
	file := filepath.Join(t.TempDir(), "a b.txt")
	if err := os.WriteFile(file, []byte("from outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := m.Command("cmd.exe", "/c", "type", Path(file)).Output()
	if err != nil || strings.TrimSpace(string(out)) != "from outside" {
		t.Errorf("type %s: %q, %v", Path(file), out, err)
	}
}

// The library is one that a reader of such files takes, and a program of Go runs with it
// (cmd/kube-proxy.TestWindows…).
func TestLibrary(t *testing.T) {
	name := filepath.Join(t.TempDir(), "one.dll")
	if err := os.WriteFile(name, library("one.dll", "Function", "other.Function"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := pe.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok || len(f.Sections) != 1 {
		t.Fatalf("header %T, %d sections", f.OptionalHeader, len(f.Sections))
	}
	data, err := f.Sections[0].Data()
	if err != nil {
		t.Fatal(err)
	}
	exports := h.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_EXPORT]
	if exports.VirtualAddress != f.Sections[0].VirtualAddress || !strings.HasSuffix(string(data[:exports.Size]),
		"\x00one.dll\x00Function\x00other.Function\x00"[1:]) {
		t.Errorf("exports %+v: %q", exports, data[:exports.Size])
	}
}
