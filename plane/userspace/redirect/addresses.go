package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Errors of an ipHelper's writes.
var (
	errAddressExists = errors.New("the address exists already")
	errNoAddress     = errors.New("the address is not there")
	errNoInterface   = errors.New("the interface is not there")
)

// ipHelper is the IP helper of Windows (iphlpapi.dll).
type ipHelper interface {
	// target finds the interface for service addresses, as a LUID, which is unique while the
	// machine runs.
	target() (luid uint64, err error)
	// list returns the unicast addresses of the family at all interfaces.
	list() ([]unicast, error)
	create(unicast) error
	delete(unicast) error
	close() error
}

// unicast is an address at an interface.
type unicast struct {
	addr netip.Addr
	luid uint64
	// bits is the length of the on-link prefix.
	bits uint8
	// skip: the node does not choose it as a source address.
	skip bool
}

// book stores the added addresses and their interface for the next process, until the machine
// restarts: Windows does not record which program added an address.
type book interface {
	read() (map[netip.Addr]uint64, error)
	write(a netip.Addr, luid uint64) error
	strike(a netip.Addr) error
}

// Addresses adds the service addresses to a Windows machine, for listeners to bind (docs/adr/0041).
// The machine refuses connections to ports without a listener. A Drop is a refusal too, and the
// listener distinguishes sources.
//
// An address is ours if the book has it with its interface, and it has the form that we give: a
// full prefix length, and never a source. It enters the book before it is added, and leaves the
// book after it is removed.
type Addresses struct {
	family lb.Family
	ip     ipHelper
	book   book
	drift  chan struct{}
	luid   uint64 // of the interface, 0 if unknown

	mu    sync.Mutex
	users map[netip.Addr]map[lb.Key]bool // keys that need an address
	// at are the addresses of the machine, as last listed, with the changes reported since; given
	// are ours.
	at, given map[netip.Addr]unicast
}

func newAddresses(f lb.Family, ip ipHelper, b book) *Addresses {
	return &Addresses{family: f, ip: ip, book: b, drift: make(chan struct{}, 1),
		users: map[netip.Addr]map[lb.Key]bool{}, at: map[netip.Addr]unicast{}, given: map[netip.Addr]unicast{}}
}

// Name is part of [Redirector].
func (c *Addresses) Name() string { return "addresses" }

// Unguarded is part of [Redirector].
func (c *Addresses) Unguarded() error {
	return errors.New("no packet filter looks at packets to listeners")
}

// Known is part of [Redirector]: the port of a listener is that of the service.
func (c *Addresses) Known(context.Context) ([]Entry, error) { return nil, nil }

// Drift is part of [Redirector].
func (c *Addresses) Drift() <-chan struct{} { return c.drift }

// Close is part of [Redirector].
func (c *Addresses) Close() error { return c.ip.close() }

// noticed handles a notification that an address was added or removed. It signals drift if our own
// writes do not explain it.
func (c *Addresses) noticed(u unicast, present bool) {
	c.mu.Lock()
	if present {
		if _, known := c.at[u.addr]; !known { // a removal is reported with the interface only
			c.at[u.addr] = u
		}
	} else if was, ok := c.at[u.addr]; ok && was.luid == u.luid {
		delete(c.at, u.addr)
	}
	own, is := c.given[u.addr]
	ours, wanted := is && own.luid == u.luid, len(c.users[u.addr]) > 0
	c.mu.Unlock()
	// Listeners of NodePorts follow the machine's own addresses. A stale address of ours may be
	// removed meanwhile; audits find those of other programs.
	if wanted && !present || !wanted && present && !ours && !u.addr.IsLinkLocalUnicast() && !u.addr.IsLoopback() {
		wake(c.drift)
	}
}

// read lists the machine's addresses and the book, deletes stale entries of the book, and returns
// the addresses that are ours.
func (c *Addresses) read() (ours []netip.Addr, err error) {
	all, err := c.ip.list()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	written, err := c.book.read()
	if err != nil {
		return nil, fmt.Errorf("read which addresses were given: %w", err)
	}
	at, given := make(map[netip.Addr]unicast, len(all)), map[netip.Addr]unicast{}
	for _, u := range all {
		at[u.addr] = u
		if luid, ok := written[u.addr]; ok && luid == u.luid && u.skip && int(u.bits) == u.addr.BitLen() {
			given[u.addr] = u
			ours = append(ours, u.addr)
		}
	}
	c.mu.Lock()
	c.at, c.given = at, given
	c.mu.Unlock()
	var errs []error
	for a := range written {
		if _, ok := given[a]; !ok {
			errs = append(errs, c.book.strike(a))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("strike stale addresses from the book: %w", err)
	}
	return ours, nil
}

// ready finds the interface, and reports whether it has changed.
func (c *Addresses) ready() (changed bool, err error) {
	luid, err := c.ip.target()
	if err != nil {
		return false, err
	}
	changed = c.luid != 0 && c.luid != luid
	c.luid = luid
	return changed, nil
}

// add adds an address to the machine, whose addresses have been read. It returns false if an
// interface has it already.
func (c *Addresses) add(a netip.Addr) (added bool, err error) {
	if c.luid == 0 {
		if _, err := c.ready(); err != nil {
			return false, err
		}
	}
	c.mu.Lock()
	_, held := c.at[a]
	c.mu.Unlock()
	if held {
		return false, nil
	}
	if err := c.book.write(a, c.luid); err != nil {
		return false, fmt.Errorf("write down that it is given: %w", err)
	}
	u := unicast{addr: a, luid: c.luid, bits: uint8(a.BitLen()), skip: true}
	switch err := c.ip.create(u); {
	case err == nil:
		c.mu.Lock()
		c.at[a], c.given[a] = u, u
		c.mu.Unlock()
		return true, nil
	case errors.Is(err, errAddressExists): // another program was faster, and owns it
		return false, c.book.strike(a)
	case errors.Is(err, errNoInterface):
		return false, errors.Join(fmt.Errorf("%w: %w", err, plane.ErrStateLost), c.book.strike(a))
	default:
		return false, errors.Join(err, c.book.strike(a))
	}
}

// Prepare is part of [AtAddresses]: Windows has no IP_FREEBIND.
func (c *Addresses) Prepare(a netip.Addr) error {
	_, err := c.give(a)
	return err
}

func (c *Addresses) give(a netip.Addr) (added bool, err error) {
	added, err = c.add(a)
	if err != nil {
		err = fmt.Errorf("give this machine the service address %s: %w", a, err)
	}
	return added, err
}

// take removes an address of ours.
func (c *Addresses) take(a netip.Addr) error {
	c.mu.Lock()
	u, ok := c.given[a]
	c.mu.Unlock()
	if !ok {
		return nil
	}
	if err := c.ip.delete(u); err != nil && !errors.Is(err, errNoAddress) && !errors.Is(err, errNoInterface) {
		return fmt.Errorf("take the service address %s from this machine: %w", a, err)
	}
	c.mu.Lock()
	delete(c.given, a)
	if c.at[a].luid == u.luid {
		delete(c.at, a)
	}
	c.mu.Unlock()
	return c.book.strike(a)
}

// NodeAddresses returns the addresses of the machine that are not ours.
func (c *Addresses) NodeAddresses() ([]netip.Addr, error) {
	if _, err := c.read(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []netip.Addr
	for a := range c.at {
		if _, ours := c.given[a]; !ours {
			all = append(all, a)
		}
	}
	return all, nil
}

// removeAll removes all our addresses, and counts them. It continues after a failure.
func (c *Addresses) removeAll() (removed int, err error) {
	ours, err := c.read()
	errs := []error{err}
	for _, a := range ours {
		if err := c.take(a); err != nil {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}

// Reset is part of [Redirector].
func (c *Addresses) Reset(_ context.Context, _ lb.Node, want []Entry) (later []lb.Key, err error) {
	if _, err := c.ready(); err != nil {
		return nil, err
	}
	ours, err := c.read()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	clear(c.users)
	c.mu.Unlock()
	for _, l := range want {
		c.need(l.Key)
	}
	_, failed, err := c.repair(ours)
	if len(failed) == 0 {
		return nil, err
	}
	for _, l := range want {
		if failed[l.Key.Addr] {
			later = append(later, l.Key)
			c.forget(l.Key)
		}
	}
	return later, nil
}

// repair adds missing addresses, then removes unwanted ones, and counts both. It continues after
// failures, and returns the addresses that could not be added.
func (c *Addresses) repair(ours []netip.Addr) (repaired int, failed map[netip.Addr]bool, err error) {
	there := map[netip.Addr]bool{}
	var add, remove []netip.Addr
	for _, a := range ours {
		there[a] = true
		if len(c.users[a]) == 0 {
			remove = append(remove, a)
		}
	}
	for a := range c.users {
		if !there[a] {
			add = append(add, a)
		}
	}
	slices.SortFunc(add, netip.Addr.Compare)
	slices.SortFunc(remove, netip.Addr.Compare)
	failed = map[netip.Addr]bool{}
	var errs []error
	for _, a := range add {
		added, err := c.give(a)
		if err != nil {
			failed[a] = true
			errs = append(errs, err)
		} else if added {
			repaired++
		}
	}
	for _, a := range remove {
		if err := c.take(a); err != nil {
			errs = append(errs, err)
		} else {
			repaired++
		}
	}
	const most = 5 // addresses in a line of the log
	return repaired, failed, errors.Join(errs[:min(len(errs), most)]...)
}

// need records a key, and reports whether it is the first of its address.
func (c *Addresses) need(k lb.Key) bool {
	if k.IsNodePort() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.users[k.Addr] == nil
	if first {
		c.users[k.Addr] = map[lb.Key]bool{}
	}
	c.users[k.Addr][k] = true
	return first
}

// forget undoes need, and reports whether it was the last key of its address.
func (c *Addresses) forget(k lb.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := c.users[k.Addr]
	if !keys[k] {
		return false
	}
	delete(keys, k)
	if len(keys) > 0 {
		return false
	}
	delete(c.users, k.Addr)
	return true
}

// Apply is part of [Redirector].
func (c *Addresses) Apply(_ context.Context, set []Entry, remove []lb.Key) error {
	for _, l := range set {
		if !c.need(l.Key) {
			continue
		}
		if _, err := c.give(l.Key.Addr); err != nil {
			c.forget(l.Key)
			return err
		}
	}
	for _, k := range remove {
		if !c.forget(k) {
			continue
		}
		if err := c.take(k.Addr); err != nil {
			c.need(k)
			return err
		}
	}
	return nil
}

// SetNode is part of [Redirector]: this redirector does not depend on the node.
func (c *Addresses) SetNode(context.Context, lb.Node) error { return nil }

// Probe is part of [Redirector]. It removes an address of a documentation network that does not
// exist here.
func (c *Addresses) Probe(context.Context) error {
	all, err := c.ip.list()
	if err != nil {
		return err
	}
	a := netip.MustParseAddr("192.0.2.0")
	if c.family == lb.IPv6 {
		a = netip.MustParseAddr("2001:db8::")
	}
	for slices.ContainsFunc(all, func(u unicast) bool { return u.addr == a }) {
		a = a.Next()
	}
	err = c.ip.delete(unicast{addr: a, luid: c.luid, bits: uint8(a.BitLen())})
	switch {
	case errors.Is(err, errNoAddress):
		return nil
	case errors.Is(err, errNoInterface):
		err = fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	return err
}

// Audit is part of [Redirector].
func (c *Addresses) Audit(context.Context, bool) (n int, err error) {
	changed, err := c.ready()
	if err != nil {
		return 0, err
	}
	ours, err := c.read()
	if err == nil {
		n, _, err = c.repair(ours)
	}
	if changed {
		n++
	}
	return n, err
}
