//go:build linux

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Config is the configuration of a plane.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// Masquerade is the bit of the packet mark that requests masquerading (plane.MasqueradeMark).
	Masquerade uint32
	// Scheduler is the scheduler of virtual servers, as named in schedulers; "" is rr.
	Scheduler string
	// Sticky is the scheduler of virtual servers by mark with session affinity: mh, or sh. "" is
	// mh.
	Sticky string
	// Idle is the time after which IPVS forgets an idle TCP connection (--ipvs-tcp-timeout); 0 is
	// 15 minutes.
	Idle time.Duration
	// ExcludeCIDRs contain foreign virtual servers and addresses (--ipvs-exclude-cidrs).
	ExcludeCIDRs []netip.Prefix
	// The plane writes to IPVS, Sets, Device and Chains. All are required; the plane does not close
	// them.
	IPVS   *ipvs.Conn
	Sets   Sets
	Device Addresses
	Chains Chains
	// Counters lists counted connections; nil counts none. The plane does not close it.
	Counters Counters
	// View opens connections for TracePacket and Differences, in the network namespace of the
	// calling thread.
	View func() (*View, error)
}

// Sets is the part of ipset.Conn that the plane needs.
type Sets interface {
	Ensure(ctx context.Context, s ipset.Set) (created bool, err error)
	Members(ctx context.Context, name string, f func(ipset.Member)) (ipset.Header, error)
	Do(ctx context.Context, ops []ipset.Op, failed func(i int, err error)) error
}

// Addresses reads and writes the addresses of kube-ipvs0, and reads those of other devices.
type Addresses interface {
	// Ensure creates the device if it does not exist.
	Ensure(ctx context.Context) error
	// Addresses returns its addresses, except link-local ones.
	Addresses(ctx context.Context) ([]netip.Addr, error)
	// Add and Remove call failed for each refused address. Adding an address twice, or removing a
	// missing one, is no error. The error wraps ErrNoDevice if the device does not exist.
	Add(ctx context.Context, addrs []netip.Addr, failed func(i int, err error)) error
	Remove(ctx context.Context, addrs []netip.Addr, failed func(i int, err error)) error
	// Place returns the addresses of other devices.
	Place(ctx context.Context) (Place, error)
	// News reports whether other programs changed the result of Addresses or Place since the last
	// call. Notify sets a function that is called when News changes.
	News() (addresses, place bool)
	Notify(f func())
}

// Chains are the rules of the mode, which depend on the node alone.
type Chains interface {
	Reset(ctx context.Context, n lb.Node) error
	SetNode(ctx context.Context, n lb.Node) error
	Audit(ctx context.Context, full bool) (repaired int, err error)
	// Rules returns the rules that the kernel has.
	Rules(ctx context.Context) ([]xtables.ChainRule, error)
}

// Plane holds one family's virtual servers and the objects around them. Only one goroutine at a
// time may call its methods, except Drift and Stats.
type Plane struct {
	cfg  Config
	sets [setCount]ipset.Set
	// broken are sets that Differences found missing or of another type. deviceless: it found no
	// device.
	broken     [setCount]bool
	deviceless bool

	l *ledger // nil before the first Reset, and when the state was lost
	// undone are the objects, by key, that failed in the last write, or are partly written.
	undone map[lb.Key][]any
	// staged are frontends in the ledger that the kernel has in part (TN-69).
	staged map[lb.Key]*lb.Frontend
	node   lb.Node

	drift     chan struct{}
	suspected bool // a reply of the kernel suggests that another program wrote
	alarm     *time.Timer
	alarmAt   time.Time
	drains    map[*virtual]struct{}
	unread    []ipvs.ServiceID // the rest that the audit in progress must list
	notices   notices
	stats     atomic.Pointer[Stats]
	counters  counters
	tracing   chan struct{} // has room for the only reader at a time

	// step is the weight of new frontends that a Reset does not postpone; tests change it.
	step int
}

const (
	// maxBatchWeight is the weight of an Apply: an operation takes about 10 µs.
	maxBatchWeight = 2000
	// step is the default weight of the new frontends of a Reset.
	step = 20000
	// stage is the number of real servers of one virtual server that a call adds or removes: for
	// each, IPVS searches all of them.
	stage = maxBatchWeight
	// auditStep is the number of virtual servers whose real servers one audit lists; inspectStep
	// limits these.
	auditStep = 2000
)

// New returns a plane. It makes no calls.
func New(cfg Config) *Plane {
	cfg.Scheduler = schedulerOf(cfg.Scheduler)
	cfg.Sticky = cmp.Or(cfg.Sticky, stickyScheduler)
	cfg.Idle = cmp.Or(cfg.Idle, silent)
	p := &Plane{cfg: cfg, drift: make(chan struct{}, 1), step: step, tracing: make(chan struct{}, 1)}
	p.counters.on, p.counters.of = cfg.Counters != nil, map[ipvs.ServiceID]*counter{}
	for s := range setCount {
		p.sets[s] = s.made(cfg.Family)
	}
	p.stats.Store(&Stats{})
	cfg.Device.Notify(p.signal)
	return p
}

// layout returns the part of the configuration that rendering needs.
func (cfg *Config) layout() layout {
	return layout{family: cfg.Family, scheduler: cfg.Scheduler, sticky: cfg.Sticky, mark: marks{cfg.Masquerade}}
}

// usable returns an error if writes are impossible now.
func (p *Plane) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.l == nil {
		return plane.ErrNotSetUp
	}
	return nil
}

// Apply writes or removes each change's objects. A failed frontend does not stop the others; the
// error joins the failures.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	verb := fmt.Sprintf("apply %d changes", len(changes))
	if err := p.usable(ctx); err != nil {
		return res, fmt.Errorf("ipvs: %s: %w", verb, err)
	}
	w := p.writer()
	for _, c := range changes {
		p.again(c.Key)
		if c.New == nil || p.staged[c.Key] != c.New {
			w.set(c.Key, c.New)
		}
		delete(p.staged, c.Key)
	}
	p.notices.late(len(p.l.late))
	err = p.ended(verb, w, w.write(ctx))
	if err == nil {
		res.Later = w.later(changes)
	}
	res.Written = w.wrote > 0
	return res, err
}

// later returns the keys of changes that are partly written.
func (w *writer) later(changes []lb.Change) (keys []lb.Key) {
	for _, c := range changes {
		if w.cutFor[c.Key] {
			keys = append(keys, c.Key)
			w.staged[c.Key] = c.New
		}
	}
	return keys
}

// maxErrors limits the errors that are reported: if one object fails, all may.
const maxErrors = 5

// ended returns the result of a verb: err failed all of it, or some frontends failed.
func (p *Plane) ended(verb string, w *writer, err error) error {
	p.publish()
	if err == nil {
		var errs []error
		more := 0
		for _, key := range sortedKeys(w.errs) {
			for _, err := range w.errs[key] {
				if key != (lb.Key{}) {
					err = fmt.Errorf("%s: %w", key, err)
				}
				if len(errs) < maxErrors {
					errs = append(errs, err)
				} else {
					more++
				}
			}
		}
		if more > 0 {
			errs = append(errs, fmt.Errorf("and %d more", more))
		}
		err = errors.Join(errs...)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, plane.ErrStateLost) {
		p.lose()
	}
	return fmt.Errorf("ipvs: %s: %w", verb, err)
}

// lose forgets the state of the kernel.
func (p *Plane) lose() {
	p.l, p.drains = nil, map[*virtual]struct{}{}
	p.staged, p.undone = map[lb.Key]*lb.Frontend{}, map[lb.Key][]any{}
}

func sortedKeys[V any](m map[lb.Key]V) []lb.Key {
	return slices.SortedFunc(maps.Keys(m), lb.Key.Compare)
}

// SetNode writes the consequences of a change of the node.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("ipvs: set node: %w", err)
	}
	err := p.cfg.Chains.SetNode(ctx, n)
	if err == nil {
		p.node = n
		err = p.replace(ctx)
	}
	if err != nil {
		p.lose() // only a Reset finds what differs from the node's state
		return fmt.Errorf("ipvs: set node: %w: %w", err, plane.ErrStateLost)
	}
	return nil
}

// replace writes the consequences of a change of the node's addresses.
func (p *Plane) replace(ctx context.Context) error {
	place, err := p.cfg.Device.Place(ctx)
	if err != nil {
		return err
	}
	p.l.place(place, p.node)
	w := p.writer()
	return errors.Join(w.write(ctx), p.ended("addresses of this node", w, nil))
}

// Probe makes a virtual server at an address for documentation, and removes it (DP-35).
func (p *Plane) Probe(ctx context.Context) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("ipvs: probe: %w", err)
	}
	s := p.l.service(probeID(p.cfg.Family), 0)
	errs := map[int]error{}
	err := p.cfg.IPVS.Do(ctx, []ipvs.Op{{Verb: ipvs.NewService, Service: s}, {Verb: ipvs.DelService, Service: s}},
		func(i int, err error) { errs[i] = err })
	if err != nil && errs[1] != nil { // an existing one proves as much
		return fmt.Errorf("ipvs: probe: %w", err)
	}
	return nil
}

// probeID returns the virtual server for probing schedulers, which upstream uses too.
func probeID(f lb.Family) ipvs.ServiceID {
	a := netip.MustParseAddr("198.51.100.0")
	if f == lb.IPv6 {
		a = netip.MustParseAddr("2001:db8::1")
	}
	return ipvs.ByAddr(netip.AddrPortFrom(a, 20000), uint8(lb.TCP))
}

// Drift has a value when other programs changed addresses, when a reply of the kernel shows another
// foreign change, and when it is time to check for ended connections.
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// signal requests an audit.
func (p *Plane) signal() {
	select {
	case p.drift <- struct{}{}:
	default:
	}
}

// suspect makes the next audit compare everything.
func (p *Plane) suspect() {
	p.suspected = true
	p.signal()
}

// MaxBatchWeight allows about two thousand operations.
func (p *Plane) MaxBatchWeight() int { return maxBatchWeight }

// ChangedBy is part of plane.Witness: who changed chains of iptables-nft.
func (p *Plane) ChangedBy() string { return plane.ChangedBy(p.cfg.Chains) }

// Close releases the resources of this process. The kernel keeps the objects.
func (p *Plane) Close() error {
	p.cfg.Device.Notify(func() {})
	if p.alarm != nil {
		p.alarm.Stop()
	}
	return nil
}
