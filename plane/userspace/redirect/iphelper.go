package redirect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"kube-proxy/plane"
)

// What an ipHelper's writes may answer.
var (
	errAddressExists = errors.New("the address is there already")
	errNoAddress     = errors.New("the address is not there")
	errNoInterface   = errors.New("the interface is not there")
)

// ipHelper is what the addresser of Windows asks of its IP helper (iphlpapi.dll). docs/adr/0041 says why it is asked, and not netsh.
type ipHelper interface {
	// target finds the interface that gets service addresses, as a LUID, which no other interface has while the machine runs.
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
	// skip: nothing of this node takes it for its source by itself.
	skip bool
}

// book remembers which addresses were given and at which interface, until the machine starts anew, for the process that comes
// after: Windows does not tell who gave an address. What is written down is certain to be ours or not there.
type book interface {
	read() (map[netip.Addr]uint64, error)
	write(a netip.Addr, luid uint64) error
	strike(a netip.Addr) error
}

// ipHelperNode is the addresser of Windows. An address is ours if it is in the book, at the interface that the book says, and looks as
// we make them: as long as it can be, and no source. An address is written down before it is given, and struck after it is taken away.
type ipHelperNode struct {
	ip      ipHelper
	book    book
	luid    uint64 // 0 before ready
	probing netip.Prefix

	mu sync.Mutex
	// at is what each address of the machine is, as it was listed last, and heard of since.
	at map[netip.Addr]unicast
	// given are those that are ours.
	given map[netip.Addr]unicast
}

// heardOf notes a change of an address, and returns it as an event.
func (n *ipHelperNode) heardOf(u unicast, present bool) event {
	n.mu.Lock()
	defer n.mu.Unlock()
	if present && n.at != nil {
		if _, known := n.at[u.addr]; !known { // of one that is there, the interface alone is told
			n.at[u.addr] = u
		}
	} else if was, ok := n.at[u.addr]; ok && was.luid == u.luid {
		delete(n.at, u.addr)
	}
	own, is := n.given[u.addr]
	return event{u.addr, present, is && own.luid == u.luid}
}

func (n *ipHelperNode) ready(context.Context) (changed bool, err error) {
	luid, err := n.ip.target()
	if err != nil {
		return false, err
	}
	changed = n.luid != 0 && n.luid != luid
	n.luid = luid
	return changed, nil
}

// ours reads the machine and the book, and strikes what is not there any more.
func (n *ipHelperNode) ours(context.Context) ([]netip.Addr, error) {
	all, err := n.ip.list()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	written, err := n.book.read()
	if err != nil {
		return nil, fmt.Errorf("read which addresses were given: %w", err)
	}
	at, given := make(map[netip.Addr]unicast, len(all)), map[netip.Addr]unicast{}
	var ours []netip.Addr
	for _, u := range all {
		at[u.addr] = u
		if luid, ok := written[u.addr]; ok && luid == u.luid && u.skip && int(u.bits) == u.addr.BitLen() {
			given[u.addr] = u
			ours = append(ours, u.addr)
		}
	}
	n.mu.Lock()
	n.at, n.given = at, given
	n.mu.Unlock()
	var errs []error
	for a := range written {
		if _, ok := given[a]; !ok {
			errs = append(errs, n.book.strike(a))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("strike addresses that are gone: %w", err)
	}
	return ours, nil
}

func (n *ipHelperNode) add(ctx context.Context, a netip.Addr) (added bool, err error) {
	if n.luid == 0 {
		if _, err := n.ready(ctx); err != nil {
			return false, err
		}
	}
	n.mu.Lock()
	known := n.at != nil
	n.mu.Unlock()
	if !known {
		if _, err := n.ours(ctx); err != nil {
			return false, err
		}
	}
	n.mu.Lock()
	_, held := n.at[a]
	n.mu.Unlock()
	if held { // by an interface of another's, or given already
		return false, nil
	}
	if err := n.book.write(a, n.luid); err != nil {
		return false, fmt.Errorf("write down that it is given: %w", err)
	}
	u := unicast{addr: a, luid: n.luid, bits: uint8(a.BitLen()), skip: true}
	switch err := n.ip.create(u); {
	case err == nil:
		n.mu.Lock()
		n.at[a], n.given[a] = u, u
		n.mu.Unlock()
		return true, nil
	case errors.Is(err, errAddressExists): // somebody was faster, whose it is
		return false, n.book.strike(a)
	case errors.Is(err, errNoInterface):
		return false, errors.Join(fmt.Errorf("%w: %w", err, plane.ErrStateLost), n.book.strike(a))
	default:
		return false, errors.Join(err, n.book.strike(a))
	}
}

func (n *ipHelperNode) remove(_ context.Context, a netip.Addr) error {
	n.mu.Lock()
	u, ok := n.given[a]
	n.mu.Unlock()
	if !ok {
		return nil
	}
	if err := n.ip.delete(u); err != nil && !errors.Is(err, errNoAddress) && !errors.Is(err, errNoInterface) {
		return err
	}
	n.mu.Lock()
	delete(n.given, a)
	if n.at[a].luid == u.luid {
		delete(n.at, a)
	}
	n.mu.Unlock()
	if err := n.book.strike(a); err != nil {
		return fmt.Errorf("strike that it is given: %w", err)
	}
	return nil
}

// probe takes away an address that is not there.
func (n *ipHelperNode) probe(context.Context) error {
	all, err := n.ip.list()
	if err != nil {
		return fmt.Errorf("list the addresses of this machine: %w", err)
	}
	there := make(map[netip.Addr]bool, len(all))
	for _, u := range all {
		there[u.addr] = true
	}
	a := n.probing.Addr()
	for there[a] {
		a = a.Next()
	}
	err = n.ip.delete(unicast{addr: a, luid: n.luid, bits: uint8(a.BitLen())})
	switch {
	case err == nil, errors.Is(err, errNoAddress):
		return nil
	case errors.Is(err, errNoInterface):
		return fmt.Errorf("%w: %w", err, plane.ErrStateLost)
	}
	return err
}

// removeAll takes away all that are ours, and counts them. It goes on after a failure.
func (n *ipHelperNode) removeAll(ctx context.Context) (removed int, err error) {
	ours, err := n.ours(ctx)
	errs := []error{err}
	for _, a := range ours {
		if err := n.remove(ctx, a); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a, err))
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}

// others are the addresses of the machine that are not ours.
func (n *ipHelperNode) others(ctx context.Context) ([]netip.Addr, error) {
	if _, err := n.ours(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []netip.Addr
	for a := range n.at {
		if _, ours := n.given[a]; !ours {
			all = append(all, a)
		}
	}
	return all, nil
}

func (n *ipHelperNode) close() error { return n.ip.close() }
