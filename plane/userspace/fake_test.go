package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
)

// machine stands for the kernel: its redirects and listeners. Successive processes use it.
type machine struct {
	leads  map[lb.Key]redirect.Entry
	node   lb.Node
	lost   bool // the redirector's rules are deleted
	own    bool
	addrs  []netip.Addr
	refuse func(redirect.Entry) bool // entries that the redirector refuses

	socks   map[relay.Listening]*fakeListener
	foreign map[relay.Listening]bool // listeners of other programs
	holes   []string                 // redirects to ports without a listener
	// prepared are the addresses of a machine that binds sockets only to its own addresses; nil: it
	// binds them to any.
	prepared map[netip.Addr]bool
	files    int // limit of listeners; 0 for none
	calls    int // writes of the redirector
}

func newMachine() *machine {
	return &machine{leads: map[lb.Key]redirect.Entry{}, socks: map[relay.Listening]*fakeListener{},
		foreign: map[relay.Listening]bool{}}
}

// fakeRedirector is one process's redirector of the machine.
type fakeRedirector struct {
	*machine
	f     lb.Family
	want  map[lb.Key]redirect.Entry
	drift chan struct{}
}

func (c *fakeRedirector) fake() *fakeRedirector { return c }

func (c *fakeRedirector) Name() string     { return "fake" }
func (c *fakeRedirector) Unguarded() error { return nil }
func (c *fakeRedirector) Close() error     { return nil }

func (c *fakeRedirector) Known(context.Context) ([]redirect.Entry, error) {
	return slices.Collect(maps.Values(c.leads)), nil
}

// ownRedirector is the redirector of a machine whose listeners are at the service addresses.
type ownRedirector struct{ *fakeRedirector }

func (c ownRedirector) NodeAddresses() ([]netip.Addr, error) { return c.addrs, nil }

func (c ownRedirector) Prepare(a netip.Addr) error {
	if c.prepared == nil {
		return nil
	}
	if c.refuse != nil && c.refuse(redirect.Entry{Key: lb.Key{Addr: a}}) {
		return fmt.Errorf("%s: %w", a, errRefused)
	}
	c.prepared[a] = true
	return nil
}

// noteHoles records redirects to ports without a listener.
func (c *fakeRedirector) noteHoles() {
	for k, l := range c.leads {
		for _, r := range l.Routes {
			at := relay.Listening{Proto: k.Proto, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), r.Port)}
			if c.f == lb.IPv6 {
				at.Addr = netip.AddrPortFrom(netip.IPv6Unspecified(), r.Port)
			}
			if r.Port != 0 && !c.own && c.socks[at] == nil {
				c.holes = append(c.holes, fmt.Sprintf("%s leads to port %d", k, r.Port))
			}
		}
	}
}

func (c *fakeRedirector) Reset(ctx context.Context, n lb.Node, want []redirect.Entry) (later []lb.Key, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.calls++
	c.want, c.node, c.lost = map[lb.Key]redirect.Entry{}, n, false
	for _, l := range want {
		if c.want[l.Key].Key != (lb.Key{}) {
			return nil, fmt.Errorf("%s twice", l.Key)
		}
		c.want[l.Key] = l
	}
	c.leads = maps.Clone(c.want)
	c.noteHoles()
	return nil, nil
}

var errRefused = errors.New("the kernel refuses")

func (c *fakeRedirector) Apply(ctx context.Context, set []redirect.Entry, remove []lb.Key) error {
	if err := errors.Join(ctx.Err(), c.there()); err != nil {
		return err
	}
	c.calls++
	for _, l := range set {
		if c.refuse != nil && c.refuse(l) {
			return fmt.Errorf("%s: %w", l.Key, errRefused)
		}
		c.leads[l.Key], c.want[l.Key] = l, l
	}
	for _, k := range remove {
		delete(c.leads, k)
		delete(c.want, k)
	}
	c.noteHoles()
	return nil
}

func (c *fakeRedirector) there() error {
	if c.lost {
		return fmt.Errorf("fake: %w", plane.ErrStateLost)
	}
	return nil
}

func (c *fakeRedirector) SetNode(ctx context.Context, n lb.Node) error {
	if err := errors.Join(ctx.Err(), c.there()); err != nil {
		return err
	}
	c.calls++
	c.node = n
	return nil
}

func (c *fakeRedirector) Probe(ctx context.Context) error { return errors.Join(ctx.Err(), c.there()) }

func (c *fakeRedirector) Drift() <-chan struct{} { return c.drift }

func (c *fakeRedirector) Audit(ctx context.Context, _ bool) (repaired int, err error) {
	if err := errors.Join(ctx.Err(), c.there()); err != nil {
		return 0, err
	}
	for k, l := range c.want {
		if !equalLeads(c.leads[k], l) {
			c.leads[k] = l
			repaired++
		}
	}
	return repaired, nil
}

func (c *fakeRedirector) dump(name func(port) string) string {
	var lines []string
	for k, l := range c.leads {
		line := fmt.Sprintf("lead %s %s from %v:", k, l.Kind, l.Sources)
		for _, r := range l.Routes {
			to := r.Do.String()
			if r.Port != 0 {
				to = "to " + name(port{k.Proto, r.Port})
			}
			line += fmt.Sprintf(" %s %s", r.From, to)
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	return fmt.Sprintf("%+v\n", c.node) + strings.Join(lines, "")
}

// nameOf names the listener at a port.
func (p *Plane) nameOf(at port) string {
	id, turns := p.setAt(at)
	if turns == nil {
		return ""
	}
	return id.String()
}

// fakeRelay has the sockets of one process.
type fakeRelay struct {
	m    *machine
	mine map[*fakeListener]bool
	next uint16
}

type fakeListener struct {
	relay *fakeRelay
	at    relay.Listening
	b     relay.Balancer
	shut  bool
}

func (r *fakeRelay) Listen(at relay.Listening, b relay.Balancer, _ *relay.Group) (listener, error) {
	m := r.m
	if m.files > 0 && len(m.socks) >= m.files {
		return nil, fmt.Errorf("listen at %v: %w", at, syscall.EMFILE)
	}
	if at.Addr.Port() == 0 {
		for {
			r.next++
			try := relay.Listening{Proto: at.Proto, Addr: netip.AddrPortFrom(at.Addr.Addr(), 30000+r.next)}
			if m.socks[try] == nil && !m.foreign[try] {
				at = try
				break
			}
		}
	}
	if m.prepared != nil && !m.prepared[at.Addr.Addr()] {
		return nil, fmt.Errorf("listen at %v: %w", at, syscall.EADDRNOTAVAIL)
	}
	if m.socks[at] != nil || m.foreign[at] {
		return nil, fmt.Errorf("listen at %v: %w", at, syscall.EADDRINUSE)
	}
	l := &fakeListener{relay: r, at: at, b: b}
	m.socks[at] = l
	r.mine[l] = true
	return l, nil
}

func (r *fakeRelay) Stats() relay.Stats        { return relay.Stats{} }
func (r *fakeRelay) StopAccepting()            {}
func (r *fakeRelay) Drain(context.Context) int { return 0 }
func (r *fakeRelay) Close() {
	for l := range r.mine {
		l.Close()
	}
}

func (l *fakeListener) Addr() netip.AddrPort         { return l.at.Addr }
func (l *fakeListener) SetBalancer(b relay.Balancer) { l.b = b }
func (l *fakeListener) Close() {
	l.shut = true
	delete(l.relay.m.socks, l.at)
	delete(l.relay.mine, l)
}

// start makes the plane of a new process on the machine.
func (m *machine) start(cfg Config) (*Plane, error) {
	c := &fakeRedirector{machine: m, f: cfg.Family, drift: make(chan struct{}, 1)}
	cfg.Redirector = c
	if m.own {
		cfg.Redirector = ownRedirector{c}
	}
	if cfg.Descriptors == nil {
		cfg.Descriptors = relay.NewGroups(relay.NewBudget(1<<20), "a test")
	}
	return newPlane(cfg, &fakeRelay{m: m, mine: map[*fakeListener]bool{}},
		func(netip.Addr) (bool, error) { return false, nil })
}
