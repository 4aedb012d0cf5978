package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// addresser gives a node addresses, on an interface of its choice, and knows those that it gave. It is what differs between
// operating systems.
type addresser interface {
	// ready makes sure of the interface, and reports whether that was a change.
	ready(ctx context.Context) (changed bool, err error)
	// ours lists the addresses of the family that were given, also by a process before this one.
	ours(ctx context.Context) ([]netip.Addr, error)
	// add gives the node an address, and reports whether it did: not where one of its interfaces has it, which stays whose it is.
	add(ctx context.Context, a netip.Addr) (added bool, err error)
	// remove takes away an address that was given. That it is not there is no error; that of others it leaves alone.
	remove(ctx context.Context, a netip.Addr) error
	// probe makes a write that changes nothing.
	probe(ctx context.Context) error
	close() error
}

// event is what an addresser hears: an address came to or went from an interface, given by us or not. The zero Addr says that
// something was missed, or that the interface itself changed.
type event struct {
	addr          netip.Addr
	present, ours bool
}

// Addresses redirects without a packet filter: the service addresses are addresses of the node, at which listeners are bound. The
// kernel itself refuses what comes to a port of theirs where nobody listens, and leads nothing elsewhere; a Drop is a refusal, and
// sources are the listener's to tell apart.
//
// The node answers at these addresses whatever else it serves at all its addresses: who may reach its ssh may do so at a service
// address. And unless the sysctls arp_ignore and arp_announce forbid it, it answers ARP for them (IPv6 does not).
type Addresses struct {
	family lb.Family
	node   addresser
	drift  chan struct{}
	set    bool
	sent   uint64

	mu   sync.Mutex
	keys map[lb.Key]bool
	refs map[netip.Addr]int // keys that need the address
}

func newAddresses(cfg Config, open func(heard func(event)) (addresser, error)) (*Addresses, error) {
	if cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6 {
		return nil, fmt.Errorf("redirect by addresses: family %s: want IPv4 or IPv6", cfg.Family)
	}
	c := &Addresses{family: cfg.Family, drift: make(chan struct{}, 1), keys: map[lb.Key]bool{}, refs: map[netip.Addr]int{}}
	var err error
	if c.node, err = open(c.heard); err != nil {
		return nil, fmt.Errorf("redirect by addresses, %s: %w", cfg.Family, err)
	}
	return c, nil
}

// Name is part of [Redirector].
func (c *Addresses) Name() string { return "addresses" }

// Unguarded is part of [Redirector].
func (c *Addresses) Unguarded() error {
	return fmt.Errorf("redirect by addresses, %s: no packet filter looks at packets to listeners", c.family)
}

// Own is part of [Redirector].
func (c *Addresses) Own() bool { return true }

// Known is part of [Redirector]: the port of a listener is that of the service.
func (c *Addresses) Known(context.Context) ([]Entry, error) { return nil, nil }

// Drift is part of [Redirector].
func (c *Addresses) Drift() <-chan struct{} { return c.drift }

// Close is part of [Redirector].
func (c *Addresses) Close() error { return c.node.close() }

// Sent is how many addresses were added or removed.
func (c *Addresses) Sent() uint64 { return c.sent }

// heard wakes whoever audits if the event is not what our own writes say.
func (c *Addresses) heard(e event) {
	c.mu.Lock()
	wanted := c.refs[e.addr] > 0
	c.mu.Unlock()
	node := e.present && !e.ours && !wanted && !e.addr.IsLinkLocalUnicast() && !e.addr.IsLoopback() // who listens at the node's own addresses follows them
	if !e.addr.IsValid() || node || wanted && !e.present {                                          // one of ours too many may be our own, removed since; audits find others'
		select {
		case c.drift <- struct{}{}:
		default:
		}
	}
}

func (c *Addresses) notSetUp(doing string) error {
	return fmt.Errorf("redirect by addresses, %s: %s: %w", c.family, doing, plane.ErrNotSetUp)
}

// Reset is part of [Redirector].
func (c *Addresses) Reset(ctx context.Context, _ lb.Node, want []Entry) error {
	if _, err := c.node.ready(ctx); err != nil {
		return fmt.Errorf("redirect by addresses, %s: %w", c.family, err)
	}
	ours, err := c.node.ours(ctx)
	if err != nil {
		return fmt.Errorf("redirect by addresses, %s: %w", c.family, err)
	}
	keys, refs := map[lb.Key]bool{}, map[netip.Addr]int{}
	for _, l := range want {
		if !l.Key.IsNodePort() && !keys[l.Key] {
			keys[l.Key] = true
			refs[l.Key.Addr]++
		}
	}
	c.mu.Lock()
	c.keys, c.refs = keys, refs
	c.mu.Unlock()
	c.set = true
	failed, err := c.mend(ctx, ours, nil)
	if ctx.Err() != nil || len(failed) == 0 {
		return err
	}
	later := &Later{Err: err}
	for _, l := range want {
		if failed[l.Key.Addr] {
			later.Keys = append(later.Keys, l.Key)
		}
	}
	for _, k := range later.Keys {
		c.forget(k)
	}
	return later
}

// mend adds what is not there, and then removes what shall not be. It goes on after failures, and returns the addresses that could
// not be added.
func (c *Addresses) mend(ctx context.Context, ours []netip.Addr, mended *int) (failed map[netip.Addr]bool, err error) {
	var errs []error
	there := make(map[netip.Addr]bool, len(ours))
	for _, a := range ours {
		there[a] = true
	}
	add, remove := c.differences(there)
	note := func(err error) {
		if len(errs) < 5 { // as many as a line of the log may name
			errs = append(errs, err)
		}
	}
	for _, a := range add {
		added, err := c.add(ctx, a)
		if err != nil {
			if failed == nil {
				failed = map[netip.Addr]bool{}
			}
			failed[a] = true
			note(err)
		} else if added && mended != nil {
			*mended++
		}
	}
	for _, a := range remove {
		if err := c.remove(ctx, a); err != nil {
			note(err)
		} else if mended != nil {
			*mended++
		}
	}
	return failed, errors.Join(errs...)
}

// differences are the addresses to add and to remove, where those are there.
func (c *Addresses) differences(there map[netip.Addr]bool) (add, remove []netip.Addr) {
	for a := range c.refs {
		if !there[a] {
			add = append(add, a)
		}
	}
	for a := range there {
		if c.refs[a] == 0 {
			remove = append(remove, a)
		}
	}
	slices.SortFunc(add, netip.Addr.Compare)
	slices.SortFunc(remove, netip.Addr.Compare)
	return add, remove
}

func (c *Addresses) add(ctx context.Context, a netip.Addr) (added bool, err error) {
	c.sent++
	if added, err = c.node.add(ctx, a); err != nil {
		return false, fmt.Errorf("redirect by addresses: give this node the service address %s: %w", a, err)
	}
	return added, nil
}

func (c *Addresses) remove(ctx context.Context, a netip.Addr) error {
	c.sent++
	if err := c.node.remove(ctx, a); err != nil {
		return fmt.Errorf("redirect by addresses: take the service address %s from this node: %w", a, err)
	}
	return nil
}

// need notes a key, and reports whether it is the first of its address.
func (c *Addresses) need(k lb.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.IsNodePort() || c.keys[k] {
		return false
	}
	c.keys[k] = true
	c.refs[k.Addr]++
	return c.refs[k.Addr] == 1
}

// forget takes that back, and reports whether it was the last of its address.
func (c *Addresses) forget(k lb.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.keys[k] {
		return false
	}
	delete(c.keys, k)
	if c.refs[k.Addr]--; c.refs[k.Addr] == 0 {
		delete(c.refs, k.Addr)
		return true
	}
	return false
}

// Apply is part of [Redirector].
func (c *Addresses) Apply(ctx context.Context, set []Entry, remove []lb.Key) error {
	if !c.set {
		return c.notSetUp("apply")
	}
	for _, l := range set {
		if !c.need(l.Key) {
			continue
		}
		if _, err := c.add(ctx, l.Key.Addr); err != nil {
			c.forget(l.Key)
			return err
		}
	}
	for _, k := range remove {
		if !c.forget(k) {
			continue
		}
		if err := c.remove(ctx, k.Addr); err != nil {
			c.need(k)
			return err
		}
	}
	return nil
}

// SetNode is part of [Redirector]: nothing here follows from the node.
func (c *Addresses) SetNode(context.Context, lb.Node) error {
	if !c.set {
		return c.notSetUp("set node")
	}
	return nil
}

// Probe is part of [Redirector].
func (c *Addresses) Probe(ctx context.Context) error {
	if !c.set {
		return c.notSetUp("probe")
	}
	if err := c.node.probe(ctx); err != nil {
		return fmt.Errorf("redirect by addresses, %s: probe: %w", c.family, err)
	}
	return nil
}

// Audit is part of [Redirector].
func (c *Addresses) Audit(ctx context.Context, full bool) (int, error) {
	if !c.set {
		return 0, c.notSetUp("audit")
	}
	n := 0
	changed, err := c.node.ready(ctx)
	if changed {
		n++
	}
	var ours []netip.Addr
	if err == nil {
		ours, err = c.node.ours(ctx)
	}
	if err != nil {
		return n, fmt.Errorf("redirect by addresses, %s: %w", c.family, err)
	}
	_, err = c.mend(ctx, ours, &n)
	return n, err
}

// Dump is part of [Redirector].
func (c *Addresses) Dump(ctx context.Context, _ func(uint16, lb.Proto) string) (string, error) {
	ours, err := c.node.ours(ctx)
	if err != nil {
		return "", err
	}
	slices.SortFunc(ours, netip.Addr.Compare)
	var out strings.Builder
	for _, a := range ours {
		fmt.Fprintf(&out, "address %s\n", a)
	}
	return out.String(), nil
}
