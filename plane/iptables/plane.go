package iptables

import (
	"fmt"
	"sync"
	"time"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
)

// Config says what a plane programs. Only Family is required.
type Config struct {
	// Family is the IP family.
	Family lb.Family
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that asks for masquerading. Nil means 14 (G3).
	MasqueradeBit *int
	// LocalhostNodePorts lets NodePorts answer on 127.0.0.1 where the node's NodePort prefixes cover it (SV-64),
	// for which net.ipv4.conf.all.route_localnet is set. Nil means true, upstream's default. It means nothing
	// for IPv6.
	LocalhostNodePorts *bool
	// Backend is the variant of iptables; Auto takes the one that the node uses (DP-14).
	Backend Backend
	// CanaryPeriod is the time from one look at the canaries to the next (DP-13): the sync period. 0 means 30 s,
	// less than 0 never.
	CanaryPeriod time.Duration
	// Runner runs the programs; nil runs the system's.
	Runner Runner
}

// Plane holds one family's chains in the kernel. Its methods must be called by one goroutine at a time, on a thread
// in the network namespace of the node; [Plane.Drift] may be read by another.
type Plane struct {
	family lb.Family
	tool   *tool
	base   renderer // what of a renderer does not change
	st     *state   // nil before the first Reset, and when it is not known what the kernel holds
	stats  Stats

	drift chan struct{}
	stop  func() // ends watch

	// dry: nothing outside of iptables is set either.
	dry bool
	// maxLines is how many rules a restore has where many services are written at once.
	maxLines int
}

// Stats count what the plane has done.
type Stats struct {
	Restores, Failures uint64 // runs of iptables-restore
	Bytes              uint64 // handed to iptables-restore
	Chains             uint64 // written
	Saves              uint64 // runs of iptables-save
	// Stuck is how many chains could not be deleted, because rules of others lead to them. They are empty.
	Stuck int
}

// How many lines a restore has at most, about. iptables-nft-restore takes time by the square of them, and each run
// some milliseconds. The legacy one reads and writes the whole table each time, so once must do.
const (
	nftLines    = 3000
	legacyLines = 1 << 30
)

// New finds the programs, and asks which back end the node uses. It changes nothing. Errors wrap
// plane.ErrUnsupported where there is no usable iptables.
func New(cfg Config) (*Plane, error) {
	if cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6 {
		return nil, fmt.Errorf("iptables: family %s: want IPv4 or IPv6", cfg.Family)
	}
	bit := 14
	if cfg.MasqueradeBit != nil {
		bit = *cfg.MasqueradeBit
	}
	if bit < 0 || bit > 31 {
		return nil, fmt.Errorf("iptables: masquerade bit %d: want 0 to 31", bit)
	}
	switch cfg.Backend {
	case Auto, NFT, Legacy:
	default:
		return nil, fmt.Errorf("iptables: back end %q: want nft or legacy", cfg.Backend)
	}
	run := cfg.Runner
	if run == nil {
		run = system{}
	}
	t, err := findTool(run, cfg.Family, cfg.Backend)
	if err != nil {
		return nil, err
	}
	p := &Plane{family: cfg.Family, tool: t, drift: make(chan struct{}, 1), stop: func() {}, maxLines: nftLines}
	if t.backend == Legacy {
		p.maxLines = legacyLines
	}
	liberal, err := kernel.Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal")
	p.base = renderer{
		family:      cfg.Family,
		localhost:   cfg.LocalhostNodePorts == nil || *cfg.LocalhostNodePorts,
		liberal:     err == nil && liberal != "0",
		fullyRandom: t.version.atLeast(version{1, 6, 2}),
		mark:        1 << bit,
	}
	if cfg.CanaryPeriod == 0 {
		cfg.CanaryPeriod = 30 * time.Second
	}
	if cfg.CanaryPeriod > 0 {
		stop := make(chan struct{})
		p.stop = sync.OnceFunc(func() { close(stop) })
		go p.watch(cfg.CanaryPeriod, stop)
	}
	return p, nil
}

// Backend returns the variant of iptables in use.
func (p *Plane) Backend() Backend { return p.tool.backend }

// Stats returns what has been done so far.
func (p *Plane) Stats() Stats { return p.stats }

// Close ends the looks at the canaries. The rules stay in force.
func (p *Plane) Close() error {
	p.stop()
	return nil
}
