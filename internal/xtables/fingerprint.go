//go:build linux

package xtables

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
)

// fingerprint is a cheap sign of the content of all tables. While it stays the same, no other
// program has changed a rule. The zero fingerprint never occurs.
type fingerprint [2 * Tables]uint32

// fingerprinter takes fingerprints of the network namespace in which it was made.
type fingerprinter interface {
	// own runs a change of ours that makes so many transactions if it succeeds. before is the
	// fingerprint of the known state; own returns that of the known state after the change, zero if
	// other programs may have written meanwhile.
	own(before fingerprint, transactions int, change func() error) (fingerprint, error)
	now() (fingerprint, error)
	close()
}

// newFingerprinter returns a fingerprinter for the network namespace of the calling thread, nil if
// the kernel does not support one.
func newFingerprinter(f lb.Family, b Backend, ours *selfwrites.Ledger) fingerprinter {
	if b == Legacy {
		if t, err := newTableInfo(f); err == nil {
			return t
		}
	} else if nf, err := kernel.OpenNetfilter(); err == nil {
		return &generations{nf, ours}
	}
	return nil
}

// generations counts the transactions of other programs: all transactions of nftables, less those
// of this process, including the other family's plane.
type generations struct {
	nf   *kernel.Netfilter
	ours *selfwrites.Ledger
}

func (g *generations) close() { g.nf.Close() }

func (g *generations) own(before fingerprint, transactions int, change func() error) (fingerprint, error) {
	if err := g.ours.WriteQuietly(transactions, change); err != nil {
		return fingerprint{}, err
	}
	return before, nil
}

func (g *generations) now() (fingerprint, error) {
	others, err := g.ours.Others(g.nf.Generation)
	return fingerprint{1, others}, err
}

// tableInfo reads the number of entries and the size of each legacy table, without a copy of the
// table. It does not notice a rule that is replaced by another of the same size.
type tableInfo struct {
	fd    int
	level int
}

// newTableInfo opens a tableInfo and checks that the kernel has all tables, which creates them.
func newTableInfo(f lb.Family) (*tableInfo, error) {
	t, err := openTableInfo(f)
	if err != nil {
		return nil, err
	}
	if _, err := t.now(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func openTableInfo(f lb.Family) (*tableInfo, error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == lb.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &tableInfo{fd, level}, nil
}

func (t *tableInfo) close() { unix.Close(t.fd) }

// getinfo is struct ipt_getinfo, and struct ip6t_getinfo.
type getinfo struct {
	name      [32]byte
	hooks     uint32
	entry     [5]uint32
	underflow [5]uint32
	entries   uint32
	size      uint32
}

func (t *tableInfo) now() (fingerprint, error) {
	var out fingerprint
	for i := range Tables {
		var info getinfo
		copy(info.name[:], i.String())
		size := uint32(unsafe.Sizeof(info))
		const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(t.fd), uintptr(t.level), getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return fingerprint{}, fmt.Errorf("query the size of table %s: %w", i, errno)
		}
		out[2*i], out[2*i+1] = info.entries, info.size
	}
	return out, nil
}

func (t *tableInfo) own(before fingerprint, _ int, change func() error) (fingerprint, error) {
	is, unknown := t.now()
	if err := change(); err != nil || unknown != nil || is != before {
		return fingerprint{}, err
	}
	is, unknown = t.now()
	if unknown != nil {
		return fingerprint{}, nil
	}
	return is, nil
}
