//go:build linux

package iptables

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/unanswered"
	"kube-proxy/plane/selfwrites"
)

// Config configures a plane. Only Family is required.
type Config struct {
	// Family is the IP family.
	Family lb.Family
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that requests masquerading. Nil means
	// 14 (G3).
	MasqueradeBit *int
	// LocalhostNodePorts lets NodePorts answer on 127.0.0.1 if the node's NodePort prefixes cover
	// it (SV-64), by net.ipv4.conf.all.route_localnet. Nil means true, upstream's default. It has
	// no effect for IPv6.
	LocalhostNodePorts *bool
	// Backend is the variant of iptables; Auto uses the node's (DP-14).
	Backend xtables.Backend
	// Runner runs the programs; nil runs the system's.
	Runner xtables.Runner
	// Writes is shared by the planes of this process in one network namespace; nil if this plane is
	// the only one.
	Writes *selfwrites.Ledger
	// Programs are the family's programs that [xtables.Find] returned. If it is nil, New finds
	// them.
	Programs *xtables.Tool
	// Log receives lost reports of unanswered connections; nil is slog.Default().
	Log *slog.Logger
}

// Plane maintains one family's chains. Only one goroutine at a time may call its methods, on a
// thread in the network namespace of the node; others may call [Plane.Stats] and [Plane.Counters].
type Plane struct {
	*xtables.Writer
	*unanswered.Watch
	base renderer // the constant part of a renderer
	st   *state   // nil before the first Reset, and while the kernel's content is unknown

	written  atomic.Pointer[xtables.Stats] // after the last write; for Measure
	reported reported

	// accounting reads the counters; nil without counters.
	accounting atomic.Pointer[kernel.Netfilter]

	round  []xtables.ChainID // the rest of an audit in windows; nil between audits
	window int               // chains and rules in a window
	drift  chan struct{}

	// found are the keys that the kernel served before a Reset, until one succeeds: a failed Reset
	// may have removed some.
	found map[lb.Key]bool

	// opened: this process set route_localnet.
	opened bool

	// dry: the plane has no kernel, so it neither reads nor writes settings of this machine.
	dry bool
	// maxLines is the number of lines in a restore of a Reset, or with single in a piece of it.
	maxLines int
	single   bool
	// maxBatchWeight is the weight that an Apply writes in one restore; with the legacy back end it
	// is the minimum.
	maxBatchWeight int
}

// The weight that an Apply writes in one restore, in units of [lb.Weight]: an endpoint is four
// lines. With the nft back end each restore makes the kernel walk all rules that its hooks reach,
// which takes a third of a second for 250,000 endpoints; writing this many takes about as long. The
// legacy programs copy the whole table. So the writes grow with the table, and copying never takes
// much more time than writing.
const (
	nftBatchWeight    = 5000
	legacyBatchWeight = 20_000
)

// MaxBatchWeight returns the recommended maximum weight of an Apply.
func (p *Plane) MaxBatchWeight() int {
	if !p.single || p.st == nil {
		return p.maxBatchWeight
	}
	return max(p.maxBatchWeight, p.st.endpoints/2)
}

// tool returns the configured programs, or finds them.
func (cfg Config) tool() (*xtables.Tool, error) {
	if found := cfg.Programs; found != nil {
		if found.Family != cfg.Family {
			return nil, fmt.Errorf("iptables: programs of %s for family %s", found.Family, cfg.Family)
		}
		return found, nil
	}
	return xtables.UsableTool(cfg.Runner, cfg.Family, cfg.Backend)
}

// New finds the programs, and detects the node's back end. It changes nothing. Errors wrap
// plane.ErrUnsupported without a usable iptables.
func New(cfg Config) (*Plane, error) {
	if cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6 {
		return nil, fmt.Errorf("iptables: family %s: want IPv4 or IPv6", cfg.Family)
	}
	mark, err := plane.MasqueradeMark(cfg.MasqueradeBit)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	t, err := cfg.tool()
	if err != nil {
		return nil, err
	}
	p := &Plane{Writer: xtables.NewWriter(t, xtables.Ours, cfg.Writes),
		Watch: unanswered.New(unanswered.Config{Family: cfg.Family, Writes: cfg.Writes, Log: cfg.Log})}
	p.window, p.drift = windowSize, make(chan struct{}, 1)
	p.maxLines, p.maxBatchWeight = xtables.NFTLines, nftBatchWeight
	if t.Backend == xtables.Legacy {
		p.maxLines, p.single, p.maxBatchWeight = xtables.PieceLines, true, legacyBatchWeight
	}
	p.dry = !t.Real()
	p.base = renderer{
		family:      cfg.Family,
		localhost:   cfg.LocalhostNodePorts == nil || *cfg.LocalhostNodePorts,
		fullyRandom: t.FullyRandom(),
		mark:        mark,
	}
	return p, nil
}

// Close releases the resources of this process. The rules stay in force.
func (p *Plane) Close() error {
	if nf := p.accounting.Swap(nil); nf != nil {
		nf.Close()
	}
	return p.Writer.Close()
}
