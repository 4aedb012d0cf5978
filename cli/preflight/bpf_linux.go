package preflight

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// littleEndian is the order of this machine.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// mostPrograms bounds how many BPF programs are looked at.
const mostPrograms = 10000

// Of linux/bpf.h: where struct bpf_prog_info has the name.
const (
	infoSize = 232
	nameAt   = 64
	nameSize = 16 // BPF_OBJ_NAME_LEN
)

// bpfPrograms lists the names of the BPF programs that the kernel has. It reads, and holds each for a moment.
func bpfPrograms(ctx context.Context) (names []string, err error) {
	seen := map[string]bool{}
	id := uint32(0)
	for range mostPrograms {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next := struct{ id, next, flags uint32 }{id: id}
		if _, errno := bpf(unix.BPF_PROG_GET_NEXT_ID, unsafe.Pointer(&next), unsafe.Sizeof(next)); errno != 0 {
			return names, bpfError(errno)
		}
		id = next.next
		name, err := bpfName(id)
		if err != nil {
			return names, err
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, nil
}

// bpfError says what the end of the list means.
func bpfError(errno unix.Errno) error {
	switch {
	case errors.Is(errno, unix.ENOENT), errors.Is(errno, unix.ENOSYS): // the end; a kernel without BPF
		return nil
	case errors.Is(errno, unix.EPERM):
		return fmt.Errorf("needs root, or CAP_SYS_ADMIN: %w", errno)
	}
	return fmt.Errorf("list the BPF programs: %w", errno)
}

func bpfName(id uint32) (string, error) {
	open := struct{ id, next, flags uint32 }{id: id}
	fd, errno := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&open), unsafe.Sizeof(open))
	if errno != 0 {
		return "", bpfError(errno) // ENOENT: it went meanwhile
	}
	defer unix.Close(int(fd))
	var info [infoSize]byte
	var pins runtime.Pinner // the kernel is given its address as a number
	pins.Pin(&info)
	defer pins.Unpin()
	ask := struct {
		fd, size uint32
		info     uint64
	}{uint32(fd), infoSize, uint64(uintptr(unsafe.Pointer(&info)))}
	if _, errno := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&ask), unsafe.Sizeof(ask)); errno != 0 {
		return "", bpfError(errno)
	}
	name, _, _ := bytes.Cut(info[nameAt:nameAt+nameSize], []byte{0})
	return string(name), nil
}

func bpf(cmd uintptr, attr unsafe.Pointer, size uintptr) (uintptr, unix.Errno) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size)
	return r, errno
}
