//go:build linux

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/internal/unanswered"
	"kube-proxy/plane/localhost"
	"kube-proxy/plane/selfwrites"
)

// Config configures a plane.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that requests masquerading. Nil means
	// 14 (G3).
	MasqueradeBit *int
	// Writes is shared by the planes of this process in one network namespace. Nil means that this
	// plane is the only one.
	Writes *selfwrites.Ledger
	// CountServices enables counting connections by frontend.
	CountServices bool
	// LocalhostNodePorts makes TCP NodePorts answer at [lb.Node.Localhost], and rejects those of
	// other protocols there.
	LocalhostNodePorts bool
	// Descriptors limits the file descriptors of localhost NodePorts; nil means five eighths of the
	// process's limit.
	Descriptors *relay.Groups
	// Log receives failures to listen; nil discards them.
	Log *slog.Logger
}

// Plane holds one family's table in the kernel. Only one goroutine may call its methods at a time;
// another may read [Plane.Drift].
type Plane struct {
	*unanswered.Watch
	builder
	sock       *wire.Socket
	mon        *monitor
	early      *early // nil after the first Reset
	ours       *selfwrites.Ledger
	st         *state // nil before the first Reset
	trust      trust
	stats      Stats
	use        atomic.Pointer[affinityUse] // nil if unknown
	reported   reported
	readLayout layout
	// counters is nil without counting, and localhost and rejected are nil without localhost
	// NodePorts.
	counters, rejected *counters
	localhost          *localhost.Proxy

	// The maximum number of elements to dump, to audit and to load at once. Only tests change them.
	bigMap, window, loadStep int
	cycle                    cycle
}

// builder computes the state and the messages that frontends need. It makes no calls.
type builder struct {
	ip    rule.IP
	rules *ruleset
	// The maximum number of backends in a set, and of slots that a batch changes in one. Only tests
	// change them.
	maxSlots, maxBatchWeight int
}

// Stats count the plane's writes.
type Stats struct {
	Batches, Failures uint64
	Messages          uint64 // netlink messages, without the frames of batches
	Bytes             uint64
}

// New opens the netlink sockets in the network namespace of the calling thread, and checks that the
// kernel has nf_tables. It changes nothing. Errors wrap plane.ErrUnsupported if the kernel lacks
// nf_tables.
func New(cfg Config) (*Plane, error) {
	p, err := offline(cfg)
	if err != nil {
		return nil, err
	}
	p.sock, err = wire.Open()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	err = p.open(cfg)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.ours.Join(p.mon)
	if err := p.readEarly(context.Background()); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// open probes the kernel's features, and opens the sockets and listeners that depend on them.
func (p *Plane) open(cfg Config) error {
	ctx := context.Background()
	if _, err := p.sock.Generation(ctx); err != nil {
		return probeError(err)
	}
	lacks, err := p.lacks(ctx, p.rules.New("", rule.SetMark(p.ip.Hash(2, 1))))
	if err != nil {
		return err
	}
	p.rules.hashes = !lacks
	p.rules.sets = schema(p.ip, p.rules.hashes)
	if err := p.openCounters(ctx); err != nil {
		return err
	}
	if err := p.openLocalhost(cfg); err != nil {
		return err
	}
	p.readLayout = p.rules.layout
	mon, err := startMonitor(&p.readLayout, p.sock)
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	p.mon = mon
	return nil
}

// offline returns a plane that can only compute, not write or read.
func offline(cfg Config) (*Plane, error) {
	if cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6 {
		return nil, fmt.Errorf("nftables: family %s: want IPv4 or IPv6", cfg.Family)
	}
	mark, err := plane.MasqueradeMark(cfg.MasqueradeBit)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	f := rule.IPOf(cfg.Family)
	return &Plane{
		Watch: unanswered.New(unanswered.Config{Family: cfg.Family, Writes: cfg.Writes, Log: cfg.Log}),
		builder: builder{f, &ruleset{layout: layout{IP: f, sets: schema(f, true), mark: mark, hashes: true,
			places: affinityPlaces, counts: cfg.CountServices, localhost: cfg.LocalhostNodePorts}}, maxSlots,
			maxBatchWeight},
		ours: cmp.Or(cfg.Writes, &selfwrites.Ledger{}), bigMap: bigMap, window: auditWindow, loadStep: loadStep,
	}, nil
}

// probeError explains why the kernel did not return the generation of its ruleset.
func probeError(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("nftables: this kernel has no nf_tables (CONFIG_NF_TABLES, module nf_tables): %w: %w", err,
			plane.ErrUnsupported)
	}
	return fmt.Errorf("nftables: read the ruleset's generation: %w", err)
}

// Close closes the sockets, which also ends connections to localhost NodePorts. The rules stay in
// force.
func (p *Plane) Close() error {
	var err error
	if p.mon != nil { // else it was never opened
		p.ours.Leave(p.mon)
		err = p.mon.Close()
	}
	p.localhost.Close()
	return errors.Join(err, p.early.close(), p.sock.Close(), p.counters.close(), p.rejected.close())
}

// Stats returns the totals so far.
func (p *Plane) Stats() Stats { return p.stats }
