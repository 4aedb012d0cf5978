package kernel

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestBPFAttached finds a program that was attached to a cgroup, and no other one.
func TestBPFAttached(t *testing.T) {
	root, err := Cgroup2(MountInfo)
	if os.Geteuid() != 0 || root == "" {
		t.Skipf("needs root and cgroup v2 (%v)", err)
	}
	dir, err := os.MkdirTemp(root, "bpf-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code := [2]uint64{0xb7 | 1<<32, 0x95} // r0 = 1; exit
	licence := [4]byte{'G', 'P', 'L'}
	load := struct {
		kind, count         uint32
		code, licence       uint64
		level, size         uint32
		log                 uint64
		version, flags      uint32
		name                [16]byte
		ifindex, attachType uint32
	}{kind: 8 /* CGROUP_SKB */, count: 2}
	load.code, load.licence = uint64(uintptr(unsafe.Pointer(&code))), uint64(uintptr(unsafe.Pointer(&licence)))
	copy(load.name[:], "passes")
	fd, errno := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
	if errno != 0 {
		t.Fatal(errno)
	}
	defer unix.Close(int(fd))
	attach := struct{ target, program, typ, flags uint32 }{uint32(f.Fd()), uint32(fd), BPFCgroupEgress, 0}
	if _, errno := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attach), unsafe.Sizeof(attach)); errno != 0 {
		t.Fatal(errno)
	}
	if all, err := BPFAttached(uint32(f.Fd()), BPFCgroupEgress); err != nil || len(all) != 1 ||
		all[0].Name != "passes" || all[0].ID == 0 {
		t.Errorf("%v, %v", all, err)
	}
	for _, typ := range []uint32{BPFCgroupIngress, 999} {
		if names, err := BPFAttached(uint32(f.Fd()), typ); err != nil || len(names) != 0 {
			t.Errorf("type %d: %v, %v", typ, names, err)
		}
	}
}
