//go:build linux

package xtables

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
)

// Counters count packets since the objects were created, perhaps by an earlier process. Both
// families count into the same objects, so each plane reports the sum.
type Counters struct {
	// InvalidDropped are packets in conntrack state INVALID (DP-09, MT-16).
	InvalidDropped uint64
	// LocalhostNodePorts are connections to NodePorts on 127.0.0.1 (SV-64, MT-17).
	LocalhostNodePorts uint64
}

// Objects that count packets, of the kernel's nfnetlink_acct. Both families share them.
const (
	InvalidDropped    = "ct_state_invalid_dropped_pkts" // MT-16
	LocalhostAccepted = "localhost_nps_accepted_pkts"   // MT-17
)

// Messages and attributes of nfnetlink_acct.
const (
	acctNew = unix.NFNL_SUBSYS_ACCT<<8 | iota
	acctGet
	acctGetAndZero
	acctDelete

	acctName    = 1
	acctPackets = 2
)

// Counting is the match that counts, as iptables-save prints it.
func Counting(name string) string { return "-m nfacct --nfacct-name  " + name + " " }

// requestCounter requests a counter, or a change of it.
func requestCounter(nf *kernel.Netfilter, typ, flags uint16, name string) ([][]byte, error) {
	return nf.Ask(typ, flags, unix.AF_UNSPEC, func(e *netlink.Encoder) { e.Str(acctName, name) })
}

// Packets reads a counter.
func Packets(nf *kernel.Netfilter, name string) (n uint64, err error) {
	bodies, err := requestCounter(nf, acctGet, unix.NLM_F_ACK, name)
	if err == nil && len(bodies) == 0 {
		err = errors.New("an answer without packets")
	}
	if err != nil {
		return 0, fmt.Errorf("read the counter %s: %w", name, err)
	}
	return netlink.BE64(netlink.Attribute(bodies[0], acctPackets)), nil
}

// MakeCounters creates missing counters.
func MakeCounters(nf *kernel.Netfilter) error {
	for _, name := range []string{InvalidDropped, LocalhostAccepted} {
		_, err := requestCounter(nf, acctNew, unix.NLM_F_CREATE|unix.NLM_F_ACK, name)
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make the counter %s: %w", name, err)
		}
	}
	return nil
}

// DropCounters deletes the counters that no rule uses. It retries until the timeout, because a rule
// that was just deleted may use them for a moment.
func DropCounters(nf *kernel.Netfilter, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	var failed error
	for _, name := range []string{InvalidDropped, LocalhostAccepted} {
		for {
			_, err := requestCounter(nf, acctDelete, unix.NLM_F_ACK, name)
			if errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) &&
				!errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
				failed = errors.Join(failed, fmt.Errorf("delete the counter %s: %w", name, err))
			}
			break
		}
	}
	return failed
}
