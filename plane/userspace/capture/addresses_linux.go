package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// DeviceName is the interface that has the service addresses, where the kernel has dummy devices; else lo has them.
const DeviceName = "kube-userspace0"

// NewAddresses works in the network namespace of the calling thread. It changes nothing. The error wraps plane.ErrUnsupported
// where this process may not set addresses.
func NewAddresses(cfg Config) (*Addresses, error) {
	return newAddresses(cfg, func(heard func(event)) (addresser, error) { return openRtnl(familyOf(cfg.Family), heard) })
}

// NodeAddresses returns the node's own addresses of the family, without those of links.
func (c *Addresses) NodeAddresses() ([]netip.Addr, error) {
	ours, err := c.node.ours(context.Background())
	if err != nil {
		return nil, fmt.Errorf("capture by addresses, %s: %w", c.family, err)
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("capture by addresses, %s: list the node's addresses: %w", c.family, err)
	}
	var own []netip.Addr
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, _ := netip.AddrFromSlice(n.IP)
		if addr = addr.Unmap(); lb.FamilyOf(addr) == c.family && !addr.IsLinkLocalUnicast() && !slices.Contains(ours, addr) {
			own = append(own, addr)
		}
	}
	return own, nil
}

// addressing is the addresser of Linux. Addresses of ours have a metric that nobody else gives (IFA_RT_PRIORITY), so that they are known on
// lo as well, and after a restart; and the scope host, so that nothing of this node takes one for its source.
type addressing struct {
	family
	conn, events *nlconn.Conn
	done         chan struct{}
	heard        func(event)
	index        int32 // of the interface, 0 before ready
	// given are the addresses that the interface has of us.
	given map[netip.Addr]bool
}

func openRtnl(f family, heard func(event)) (*addressing, error) {
	r := &addressing{family: f, done: make(chan struct{}), heard: heard, given: map[netip.Addr]bool{}}
	var err error
	if r.conn, r.events, err = rtnl.Open(f.proto, unix.RTNLGRP_LINK); err != nil {
		return nil, err
	}
	// What a process may do to addresses the kernel checks before it looks for the interface, which is none.
	err = r.conn.Do(context.Background(), r.address(unix.RTM_DELADDR, unix.NLM_F_ACK, f.loopback().Addr(), math.MaxInt32), nil)
	if errors.Is(err, unix.EPERM) {
		r.events.Close()
		r.conn.Close()
		return nil, fmt.Errorf("set addresses: %w: run as root, or with CAP_NET_ADMIN: %w", err, plane.ErrUnsupported)
	}
	go func() {
		defer close(r.done)
		r.events.Listen(r.hear, func() { heard(event{}) })
	}()
	return r, nil
}

func (r *addressing) close() error {
	err := r.events.Close()
	<-r.done
	return cmp.Or(err, r.conn.Close())
}

func (r *addressing) hear(m nlconn.Message) {
	switch m.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if a, ok := rtnl.ParseAddress(m.Body); ok {
			r.heard(event{a.Addr, m.Type == unix.RTM_NEWADDR, a.Metric == ourMetric})
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		// A device that comes is our own; one that goes, or goes down, has the addresses go too, though not all kernels say so.
		if l, ok := rtnl.ParseLink(m.Body); ok && l.Name == DeviceName && (m.Type == unix.RTM_DELLINK || l.Flags&unix.IFF_UP == 0) {
			r.heard(event{})
		}
	}
}

// device finds the interface of our name; its index is 0 if there is none.
func device(ctx context.Context, conn *nlconn.Conn) (found rtnl.Link, err error) {
	found, err = rtnl.FindLink(ctx, conn, DeviceName)
	if err == nil && found.Index != 0 && found.Kind != "dummy" {
		return rtnl.Link{}, fmt.Errorf("interface %s: it is of kind %q, not dummy, so it is not ours: rename it", DeviceName, found.Kind)
	}
	return found, err
}

// ready makes the device, or falls back to lo where the kernel has no dummy.
func (r *addressing) ready(ctx context.Context) (changed bool, err error) {
	d, err := device(ctx, r.conn)
	if err != nil {
		return false, err
	}
	if d.Index != 0 && d.Flags&unix.IFF_UP != 0 {
		changed = r.index != 0 && r.index != d.Index
		r.index = d.Index
		return changed, nil
	}
	if d.Index == 0 && r.index == rtnl.Loopback { // known to have no dummy
		return false, nil
	}
	if d.Index == 0 {
		d.Name, d.Kind = DeviceName, "dummy"
	}
	err = r.conn.Do(ctx, up(d), nil)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
		r.index = rtnl.Loopback
		if err := r.conn.Do(ctx, up(rtnl.Link{Index: rtnl.Loopback}), nil); err != nil {
			return false, fmt.Errorf("set lo up, for service addresses: %w", err)
		}
		return false, nil
	}
	if err == nil || errors.Is(err, unix.EEXIST) { // the other family's capture may have been faster
		d, err = device(ctx, r.conn)
	}
	if err != nil {
		return false, fmt.Errorf("make the interface %s for service addresses: %w", DeviceName, err)
	}
	changed = r.index != 0
	r.index = d.Index
	return changed, nil
}

func (r *addressing) ours(ctx context.Context) ([]netip.Addr, error) {
	all, err := rtnl.Addresses(ctx, r.conn, r.proto)
	if err != nil {
		return nil, err
	}
	clear(r.given)
	var ours []netip.Addr
	for _, a := range all {
		if a.Metric == ourMetric && a.Index == r.index {
			ours = append(ours, a.Addr)
			r.given[a.Addr] = true
		}
	}
	return ours, nil
}

// address makes a request about an address of ours.
func (r *addressing) address(typ, flags uint16, a netip.Addr, index int32) []byte {
	of := rtnl.Address{Addr: a, Bits: a.BitLen(), Index: index, Scope: unix.RT_SCOPE_HOST, Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE, Metric: ourMetric}
	if r.fam == lb.IPv6 { // whose addresses have no scope that is given
		of.Flags |= unix.IFA_F_DEPRECATED
	}
	var e nlconn.Encoder
	rtnl.AppendAddress(&e, typ, flags, of)
	return e.B
}

func (r *addressing) add(ctx context.Context, a netip.Addr) (added bool, err error) {
	if held, err := r.held(ctx, a); err != nil || held {
		return false, err
	}
	err = r.conn.Do(ctx, r.address(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, a, r.index), nil)
	switch {
	case err == nil:
		r.given[a] = true
		if r.fam == lb.IPv6 {
			err = r.settled(ctx, a)
		}
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case errors.Is(err, unix.ENODEV):
		return false, fmt.Errorf("the interface is gone: %w: %w", err, plane.ErrStateLost)
	}
	return err == nil, err
}

// settled waits until the kernel takes an address of IPv6 for the node's, which it does a moment after the request: until then packets to it
// go elsewhere.
func (r *addressing) settled(ctx context.Context, a netip.Addr) error {
	for range 1000 {
		if leads, err := rtnl.LeadsHere(ctx, r.conn, a); err != nil || leads {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return errors.New("the kernel does not take it for one of the node's, though it took the request")
}

// held reports whether the node has the address. Of an address of IPv6 that is new the kernel still asks the link whether anybody
// else has it (DAD), and leads no packets there meanwhile; so it is asked for the address as well.
func (r *addressing) held(ctx context.Context, a netip.Addr) (held bool, err error) {
	if r.fam == lb.IPv6 {
		if _, held, err = rtnl.Find(ctx, r.conn, 0, a); held || err != nil {
			return held, err
		}
	}
	return rtnl.LeadsHere(ctx, r.conn, a)
}

func (r *addressing) remove(ctx context.Context, a netip.Addr) error {
	if !r.given[a] { // it is another's
		return nil
	}
	err := r.conn.Do(ctx, r.address(unix.RTM_DELADDR, unix.NLM_F_ACK, a, r.index), nil)
	if err == nil || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		delete(r.given, a)
		return nil
	}
	return err
}

// probe sets the interface up, which it is.
func (r *addressing) probe(ctx context.Context) error {
	err := r.conn.Do(ctx, up(rtnl.Link{Index: r.index}), nil)
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("the interface is gone: %w: %w", err, plane.ErrStateLost)
	}
	return err
}

// up makes a request that sets an interface up, one with index 0 after making it.
func up(l rtnl.Link) []byte {
	l.Flags = unix.IFF_UP
	return rtnl.ChangeLink(l, unix.IFF_UP)
}

// removeAddresses takes away the addresses of a family that a process before gave, and the device if it is of no more use. It returns
// how many addresses went, and whether the device did.
func removeAddresses(ctx context.Context, fam lb.Family) (addresses int, deviceGone bool, err error) {
	f := familyOf(fam)
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return 0, false, fmt.Errorf("remove service addresses of %s: %w", fam, err)
	}
	defer conn.Close()
	r := &addressing{family: f, conn: conn, given: map[netip.Addr]bool{}}
	d, err := device(ctx, conn)
	var errs []error
	if err != nil {
		errs = append(errs, err) // not ours; lo may have some all the same
	}
	for _, index := range []int32{rtnl.Loopback, d.Index} {
		if r.index = index; index == 0 {
			continue
		}
		ours, err := r.ours(ctx)
		for _, a := range ours {
			if err = r.remove(ctx, a); err != nil {
				break
			}
			addresses++
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove service addresses of %s: %w", fam, err))
		}
	}
	if d.Index == 0 || len(errs) > 0 {
		return addresses, false, errors.Join(errs...)
	}
	for _, f := range []family{familyOf(lb.IPv4), familyOf(lb.IPv6)} {
		all, err := rtnl.Addresses(ctx, conn, f.proto)
		for _, a := range all {
			if a.Index == d.Index && a.Metric == ourMetric || err != nil {
				return addresses, false, err
			}
		}
	}
	if err := conn.Do(ctx, rtnl.DeleteLink(d.Index), nil); err != nil && !errors.Is(err, unix.ENODEV) {
		return addresses, false, fmt.Errorf("remove interface %s: %w", DeviceName, err)
	}
	return addresses, true, nil
}
