//go:build linux

package iptables

import (
	"fmt"
	"log/slog"
	"math"
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
	pace     pace
	// left is the weight that the last Reset postponed and that is not written yet.
	left int
}

// pace is the weight that the plane writes in one restore, in units of [lb.Weight]: a new endpoint
// is four lines, and one in place of another is six.
type pace struct {
	// first is the weight that a Reset does not postpone.
	first int
	// An Apply writes one part of the endpoints in the table, or one loadPart of the weight that a
	// Reset postponed, but no less than least and no more than most.
	part, least, most int
}

// A restore has a cost that grows with the table, whatever it changes, and the others wait for it.
// With the nft back end the kernel walks all rules that its hooks reach, which takes 2 µs for each
// endpoint of the table; writing an endpoint takes 0.1 ms. So a restore of a 64th of the endpoints
// takes two to three times as long as one of a single endpoint. The time of iptables-nft-restore
// itself grows with the square of the number of chains in its input, which makes pieces of more
// than 5000 endpoints slower than two of half the size.
//
// The legacy programs copy the whole table. Copying never takes much more time than writing.
var (
	nftPace    = pace{first: 5000, part: 64, least: 1000, most: 5000}
	legacyPace = pace{first: 20_000, part: 2, least: 20_000, most: math.MaxInt}
)

// loadPart divides the weight that a Reset postponed. The pieces of a load are larger, because it
// ends, and the node is not ready before.
const loadPart = 8

// MaxBatchWeight returns the recommended maximum weight of an Apply.
func (p *Plane) MaxBatchWeight() int {
	endpoints := 0
	if p.st != nil {
		endpoints = p.st.endpoints
	}
	return min(p.pace.most, max(p.pace.least, endpoints/p.pace.part, p.left/loadPart))
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
	p.maxLines, p.pace = xtables.NFTLines, nftPace
	if t.Backend == xtables.Legacy {
		p.maxLines, p.single, p.pace = xtables.PieceLines, true, legacyPace
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
