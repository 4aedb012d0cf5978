//go:build linux

package xtables

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/plane/ownwrites"
)

// Fingerprint is a cheap sign of what all tables hold: while it stays, nobody else has changed a rule. The zero fingerprint is
// never that of anything.
type Fingerprint [2 * Tables]uint32

// Fingerprinter takes the fingerprint of the network namespace in which it was made.
type Fingerprinter interface {
	// Own runs a change of ours that has so many transactions if it succeeds. before is the fingerprint of what is known;
	// the answer is that of what is known then, zero if others may have come between.
	Own(before Fingerprint, transactions int, change func() error) (Fingerprint, error)
	Now() (Fingerprint, error)
	Close()
}

// NewFingerprinter returns one for the network namespace of the calling thread, nil where the kernel does not tell.
func NewFingerprinter(f lb.Family, b Backend, ours *ownwrites.Ledger) Fingerprinter {
	if b == Legacy {
		if t, err := newTableInfo(f); err == nil {
			return t
		}
	} else if nf, err := kernel.OpenNetfilter(); err == nil {
		return &Generations{nf, ours}
	}
	return nil
}

// Generations counts the transactions of others. nftables count all; what is left when those of this process are taken off, of
// the other family's plane too, is theirs.
type Generations struct {
	NF   *kernel.Netfilter
	Ours *ownwrites.Ledger
}

func (g *Generations) Close() { g.NF.Close() }

func (g *Generations) Own(before Fingerprint, transactions int, change func() error) (Fingerprint, error) {
	if err := g.Ours.Write(transactions, change); err != nil {
		return Fingerprint{}, err
	}
	return before, nil
}

func (g *Generations) Now() (Fingerprint, error) {
	others, err := g.Ours.Others(g.NF.Generation)
	return Fingerprint{1, others}, err
}

// tableInfo knows the number of entries and the size of each legacy table, which the kernel tells without a copy of the
// table. A rule that is exchanged for another of the same size is not noticed.
type tableInfo struct {
	fd    int
	level int
}

// newTableInfo opens one, and finds out whether the kernel has all tables of the plane, which that makes.
func newTableInfo(f lb.Family) (*tableInfo, error) {
	t, err := openTableInfo(f)
	if err != nil {
		return nil, err
	}
	if _, err := t.Now(); err != nil {
		t.Close()
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

func (t *tableInfo) Close() { unix.Close(t.fd) }

// getinfo is struct ipt_getinfo, and struct ip6t_getinfo.
type getinfo struct {
	name      [32]byte
	hooks     uint32
	entry     [5]uint32
	underflow [5]uint32
	entries   uint32
	size      uint32
}

func (t *tableInfo) Now() (Fingerprint, error) {
	var out Fingerprint
	for i := range Tables {
		var info getinfo
		copy(info.name[:], i.String())
		size := uint32(unsafe.Sizeof(info))
		const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(t.fd), uintptr(t.level), getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			return Fingerprint{}, fmt.Errorf("ask for the size of table %s: %w", i, errno)
		}
		out[2*i], out[2*i+1] = info.entries, info.size
	}
	return out, nil
}

func (t *tableInfo) Own(before Fingerprint, _ int, change func() error) (Fingerprint, error) {
	is, unknown := t.Now()
	if err := change(); err != nil || unknown != nil || is != before {
		return Fingerprint{}, err
	}
	is, unknown = t.Now()
	if unknown != nil {
		return Fingerprint{}, nil
	}
	return is, nil
}
