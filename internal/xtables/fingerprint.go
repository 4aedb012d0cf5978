//go:build linux

package xtables

import (
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
