package kernel

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPrograms bounds how many BPF programs are looked at.
const maxPrograms = 10000

// Of linux/bpf.h: where struct bpf_prog_info has the name.
const (
	infoSize = 232
	nameAt   = 64
	nameSize = 16 // BPF_OBJ_NAME_LEN
)

// BPFPrograms lists the names of the BPF programs that the kernel has. It reads, and holds each for
// a moment.
func BPFPrograms(ctx context.Context) (names []string, err error) {
	seen := map[string]bool{}
	err = eachID(unix.BPF_PROG_GET_NEXT_ID, func(id uint32) error {
		name, err := bpfName(id)
		if err == nil && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
		return cmp.Or(ctx.Err(), err)
	})
	return names, err
}

// BPFAtHook is a BPF program at a hook of netfilter, in one of the kernel's network namespaces.
type BPFAtHook struct {
	BPFProgram
	Hook     uint32 // NF_INET_*
	Priority int32
}

// BPFAtHooks returns the programs at the hooks of a family, NFPROTO_IPV4 or NFPROTO_IPV6. The
// kernel does not report their network namespace.
func BPFAtHooks(family uint32) (all []BPFAtHook, err error) {
	err = eachID(unix.BPF_LINK_GET_NEXT_ID, func(id uint32) error {
		var l struct { // struct bpf_link_info
			typ, id, program, _ uint32
			family, hook        uint32
			priority            int32
			_                   [9]uint32
		}
		err := bpfInfo(unix.BPF_LINK_GET_FD_BY_ID, id, unsafe.Pointer(&l), unsafe.Sizeof(l))
		if err != nil || l.typ != unix.BPF_LINK_TYPE_NETFILTER || l.family != family {
			return err
		}
		name, err := bpfName(l.program)
		all = append(all, BPFAtHook{BPFProgram{l.program, name}, l.hook, l.priority})
		return err
	})
	if errors.Is(err, unix.EINVAL) { // before Linux 5.8
		return nil, nil
	}
	return all, err
}

// eachID calls f with the ids of programs or links, of maxPrograms at most.
func eachID(command uintptr, f func(id uint32) error) error {
	next := struct{ id, next, flags uint32 }{}
	for range maxPrograms {
		if _, errno := bpf(command, unsafe.Pointer(&next), unsafe.Sizeof(next)); errno != 0 {
			return bpfError(errno)
		}
		next.id = next.next
		if err := f(next.id); err != nil {
			return err
		}
	}
	return nil
}

// bpfError interprets the error at the end of the list.
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
	var info [infoSize]byte
	err := bpfInfo(unix.BPF_PROG_GET_FD_BY_ID, id, unsafe.Pointer(&info), infoSize)
	name, _, _ := bytes.Cut(info[nameAt:nameAt+nameSize], []byte{0})
	return string(name), err
}

// bpfInfo reads what the kernel reports of a program or link; nothing if it went meanwhile.
func bpfInfo(command uintptr, id uint32, info unsafe.Pointer, size uintptr) error {
	open := struct{ id, next, flags uint32 }{id: id}
	fd, errno := bpf(command, unsafe.Pointer(&open), unsafe.Sizeof(open))
	if errno != 0 {
		return bpfError(errno)
	}
	defer unix.Close(int(fd))
	var pins runtime.Pinner // the kernel gets its address as a number
	pins.Pin(info)
	defer pins.Unpin()
	ask := struct {
		fd, size uint32
		info     uint64
	}{uint32(fd), uint32(size), uint64(uintptr(info))}
	if _, errno := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&ask), unsafe.Sizeof(ask)); errno != 0 {
		return bpfError(errno)
	}
	return nil
}

// Types of attachment of linux/bpf.h (enum bpf_attach_type).
const (
	BPFCgroupIngress, BPFCgroupEgress    = 0, 1
	BPFCgroupConnect4, BPFCgroupConnect6 = 10, 11
	BPFCgroupSendmsg4, BPFCgroupSendmsg6 = 14, 15
	BPFCgroupRecvmsg4, BPFCgroupRecvmsg6 = 19, 20
	BPFSkLookup                          = 36
	BPFTcxIngress, BPFTcxEgress          = 46, 47
	BPFNetkitPrimary, BPFNetkitPeer      = 54, 55
	maxAttached                          = 16
)

// BPFProgram is a BPF program of the kernel.
type BPFProgram struct {
	ID   uint32
	Name string
}

// BPFAttached returns the programs that are attached to a target: the file descriptor of a cgroup
// or network namespace, or the index of an interface. A kernel that lacks the type has none.
func BPFAttached(target, typ uint32) (all []BPFProgram, err error) {
	var ids [maxAttached]uint32
	var pins runtime.Pinner
	pins.Pin(&ids)
	defer pins.Unpin()
	q := struct {
		target, typ, flags, attached uint32
		ids                          uint64
		count, _                     uint32
		_                            [3]uint64 // fields of newer kernels
	}{target: target, typ: typ, ids: uint64(uintptr(unsafe.Pointer(&ids))), count: maxAttached}
	_, errno := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&q), unsafe.Sizeof(q))
	switch errno {
	case 0, unix.ENOSPC: // there are more
	case unix.EINVAL, unix.ENOENT, unix.ENOSYS, unix.EOPNOTSUPP:
		return nil, nil
	default:
		return nil, fmt.Errorf("query BPF programs, which needs CAP_BPF and CAP_NET_ADMIN: %w", errno)
	}
	for _, id := range ids[:min(q.count, maxAttached)] {
		name, err := bpfName(id)
		if err != nil {
			return all, err
		}
		all = append(all, BPFProgram{id, name})
	}
	return all, nil
}

func bpf(cmd uintptr, attr unsafe.Pointer, size uintptr) (uintptr, unix.Errno) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size)
	return r, errno
}
