package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

var (
	// ErrNoDevice is wrapped by errors that say that kube-ipvs0 is gone.
	ErrNoDevice = errors.New("there is no " + Device)
	// ErrOtherDevice is wrapped by errors that say that there can be no kube-ipvs0 of ours: there is another, or the kernel has
	// none. What needs no address there can be served all the same.
	ErrOtherDevice = errors.New("no device for service addresses")
)

// device is kube-ipvs0 for one family, and what the node has of addresses beside it. It notices what others do to them by the
// kernel's notifications, at a cost that follows what they do.
//
// The device is a kube-proxy's alone: what is on it and nobody wants is an earlier run's, or upstream's. It stays down, as
// upstream's does: its addresses are the node's all the same, and it gets no routes, and no address of its own by IPv6.
// Addresses have the scope host, of IPv6 no preferred lifetime, so that nothing of this node takes one for its source: the
// kernel would, towards an interface without an address, such as that of a pod. ARP for them is a matter of --ipvs-strict-arp.
//
// News, Notify and Close may be called by any goroutine, the rest by one at a time.
type device struct {
	family lb.Family
	conn   *nlconn.Conn
	events *nlconn.Conn
	done   chan struct{}
	out    nlconn.Encoder
	link   error // why there is no device of ours, an ErrOtherDevice
	piece  int   // how many requests go in one system call
	nlconn.Counters

	mu     sync.Mutex
	notify func()
	index  int32               // of the device, 0 if there is none
	ours   map[netip.Addr]int  // what it has, by what we did and were told, with the length of the prefix
	odd    map[netip.Addr]bool // what was heard since of its addresses that does not agree with that
	// own counts the notifications that are still to come of our own writes.
	own   map[netip.Addr]int
	quiet chan struct{} // has a value when there may be none left
	// others are the addresses of other devices, by the numbers of these.
	others    map[netip.Addr][]int32
	listed    bool // others is known
	listing   bool // the kernel is asked for all addresses: what is heard meanwhile waits, as it may be older or newer
	waiting   []heard
	addresses bool // others changed something of the device's
	place     bool // others changed something of what Place returns
}

// heard is a notification of an address.
type heard struct {
	rtnl.Address
	there bool
}

// maxWaiting is how many notifications may wait.
const maxWaiting = 1 << 16

// requestsAtOnce is how many requests go in one system call. Their answers must find room.
const requestsAtOnce = 256

// openDevice listens in the network namespace of the calling thread. It changes nothing.
func openDevice(family lb.Family) (*device, error) {
	d := &device{family: family, done: make(chan struct{}), quiet: make(chan struct{}, 1), own: map[netip.Addr]int{}, piece: requestsAtOnce, notify: func() {},
		ours: map[netip.Addr]int{}, odd: map[netip.Addr]bool{}, others: map[netip.Addr][]int32{}}
	var err error
	if d.conn, d.events, err = rtnl.Open(d.number(), unix.RTNLGRP_LINK); err != nil {
		return nil, fmt.Errorf("device %s: %w", Device, err)
	}
	go func() {
		defer close(d.done)
		d.events.Listen(d.hear, d.lost)
	}()
	return d, nil
}

// number is the kernel's of the family.
func (d *device) number() byte {
	if d.family == lb.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Close ends it. What the kernel has stays.
func (d *device) Close() error {
	err := d.events.Close()
	<-d.done
	return cmp.Or(err, d.conn.Close())
}

// Notify has f called, by another goroutine, when News has something to tell; with nil nobody. It must not call the device.
func (d *device) Notify(f func()) {
	if f == nil {
		f = func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = f
}

// News reports whether others changed what Addresses or Place return since it was called last.
func (d *device) News() (addresses, place bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	addresses, place = d.addresses || len(d.odd) > 0, d.place
	d.addresses, d.place = false, false
	clear(d.odd)
	return addresses, place
}

// lost is called when the kernel had more to tell than found room.
func (d *device) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.miss()
}

func (d *device) miss() {
	d.listed, d.addresses, d.place = false, true, true
	d.forgetOwn()
	d.notify()
}

// forgetOwn awaits no notifications of our own writes any more.
func (d *device) forgetOwn() {
	clear(d.own)
	d.settle()
}

// settle notes that a notification of our own is not awaited any more.
func (d *device) settle(addrs ...netip.Addr) {
	for _, a := range addrs {
		if d.own[a]--; d.own[a] <= 0 {
			delete(d.own, a)
		}
	}
	if len(d.own) > 0 {
		return
	}
	select {
	case d.quiet <- struct{}{}:
	default:
	}
}

// hear takes in a notification.
func (d *device) hear(m nlconn.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch m.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, ok := rtnl.ParseAddress(m.Body)
		if !ok || lb.FamilyOf(a.Addr) != d.family {
			return
		}
		x := heard{a, m.Type == unix.RTM_NEWADDR}
		switch {
		case !d.listing:
			d.hearAddress(x)
		case len(d.waiting) < maxWaiting:
			d.waiting = append(d.waiting, x)
		default:
			d.miss()
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if l, ok := rtnl.ParseLink(m.Body); ok {
			d.hearLink(l, m.Type == unix.RTM_NEWLINK)
		}
	}
}

func (d *device) hearAddress(x heard) {
	if d.index != 0 && x.Index == d.index {
		d.hearOurs(x.Addr, x.there)
	} else {
		d.hearOthers(x.Address, x.there)
	}
}

// hearOurs takes in what was heard of an address of the device. What we did ourselves is no surprise, though it may be undone since.
func (d *device) hearOurs(a netip.Addr, there bool) {
	if d.own[a] > 0 {
		d.settle(a)
		return
	}
	if _, known := d.ours[a]; known == there || linkLocal(a) {
		delete(d.odd, a)
		return
	}
	d.odd[a] = true
	d.notify()
}

func (d *device) hearOthers(a rtnl.Address, there bool) {
	if d.note(a, there) && !linkLocal(a.Addr) {
		d.place = true
		d.notify()
	}
}

// note takes in that another device has an address, or has it no more, and reports whether that is a change for the node.
func (d *device) note(a rtnl.Address, there bool) (changed bool) {
	if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
		there = false // it is not the node's yet; of one that becomes so there is another notification
	}
	on := d.others[a.Addr]
	i := slices.Index(on, a.Index)
	switch {
	case there && i < 0:
		d.others[a.Addr] = append(on, a.Index)
		return len(on) == 0
	case !there && i >= 0:
		if on = slices.Delete(on, i, i+1); len(on) > 0 {
			d.others[a.Addr] = on
			return false
		}
		delete(d.others, a.Addr)
		return true
	}
	return false
}

func (d *device) hearLink(l rtnl.Link, there bool) {
	switch {
	case l.Index == d.index && (!there || l.Name != Device):
		d.index, d.addresses = 0, true
		d.forgetOwn()
		d.notify()
	case l.Index != d.index && !there: // its addresses went before, or nobody says so
		for a := range d.others {
			d.hearOthers(rtnl.Address{Addr: a, Index: l.Index}, false)
		}
	}
}

// linkLocal addresses come and go with devices, those of pods too, and are nobody's.
func linkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// Ensure makes the device if there is none. The error wraps ErrOtherDevice if there can be none of ours.
func (d *device) Ensure(ctx context.Context) error {
	link, err := rtnl.FindLink(ctx, d.conn, Device)
	if err == nil && link.Index == 0 {
		made := rtnl.Link{Name: Device, Kind: DeviceType, Flags: unix.IFF_NOARP}
		d.Sent(1, 0)
		err = d.conn.Do(ctx, rtnl.ChangeLink(made, unix.IFF_NOARP), nil)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			err = fmt.Errorf("%w: the kernel has no devices of type %s (CONFIG_DUMMY, the module dummy), so that service addresses that no other device has "+
				"are not served: %w", ErrOtherDevice, DeviceType, plane.ErrUnsupported)
		case err == nil, errors.Is(err, unix.EEXIST): // the other family's plane may have been faster
			link, err = rtnl.FindLink(ctx, d.conn, Device)
		default:
			err = fmt.Errorf("make device %s: %w", Device, err)
		}
	}
	return d.found(link, err)
}

// find looks for the device, and makes none.
func (d *device) find(ctx context.Context) error { return d.found(rtnl.FindLink(ctx, d.conn, Device)) }

// found takes note of which device there is, and of why there is none.
func (d *device) found(link rtnl.Link, err error) error {
	if err == nil && link.Index != 0 && link.Kind != DeviceType {
		err = fmt.Errorf("%w: there is a device %s of type %q, which is not %s and so not a kube-proxy's; it stays as it is, and service addresses that no other "+
			"device has are not served: rename it, or delete it by ip link delete %s", ErrOtherDevice, Device, link.Kind, DeviceType, Device)
	}
	if err == nil && link.Index == 0 {
		err = ErrNoDevice // somebody deletes what we make
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.link = nil
	if err != nil {
		link = rtnl.Link{}
		if errors.Is(err, ErrOtherDevice) {
			d.link = err
		}
	}
	if d.index != link.Index {
		d.index, d.listed = link.Index, false
		clear(d.ours)
		d.forgetOwn()
	}
	return err
}

// Addresses lists those on the device, but such as every device has. The error wraps ErrNoDevice if there is none.
func (d *device) Addresses(ctx context.Context) ([]netip.Addr, error) {
	if err := d.list(ctx); err != nil {
		return nil, fmt.Errorf("device %s: %w", Device, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index == 0 && d.link == nil {
		return nil, ErrNoDevice
	}
	return slices.Collect(maps.Keys(d.ours)), nil
}

// list asks the kernel for the addresses of all devices.
func (d *device) list(ctx context.Context) error {
	d.mu.Lock()
	d.listing, d.listed = true, true // unless something is lost meanwhile
	d.mu.Unlock()
	d.Sent(1, 0)
	all, err := rtnl.Addresses(ctx, d.conn, d.number())
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		for _, x := range d.waiting {
			d.hearAddress(x)
		}
		d.listing, d.waiting = false, nil
	}()
	if err != nil {
		d.listed = false
		return err
	}
	clear(d.ours)
	clear(d.odd)
	d.forgetOwn()
	before := d.others
	d.others = map[netip.Addr][]int32{}
	for _, a := range all {
		switch {
		case a.Index != d.index || d.index == 0:
			d.note(a, true)
		case !linkLocal(a.Addr):
			d.ours[a.Addr] = a.Bits
		}
	}
	if !sameKeys(before, d.others) {
		d.place = true
	}
	return nil
}

func sameKeys[V any](a, b map[netip.Addr]V) bool {
	for k := range a {
		if _, has := b[k]; !has {
			return false
		}
	}
	return len(a) == len(b)
}

// Place returns what other devices have. Only the first call asks the kernel, and one after something was lost.
func (d *device) Place(ctx context.Context) (Place, error) {
	d.mu.Lock()
	listed := d.listed
	d.mu.Unlock()
	if !listed {
		if err := d.list(ctx); err != nil {
			return Place{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	p := Place{Elsewhere: make(map[netip.Addr]bool, len(d.others))}
	for a := range d.others {
		p.Elsewhere[a] = true
		if !a.IsLoopback() && !linkLocal(a) {
			p.Own = append(p.Own, a)
		}
	}
	slices.SortFunc(p.Own, netip.Addr.Compare)
	return p, nil
}

// Add gives the device addresses, and calls failed for each that it could not. That it has one already is no error. When Add
// returns, packets to the others are led here. The error wraps ErrNoDevice if there is no device.
func (d *device) Add(ctx context.Context, addrs []netip.Addr, failed func(i int, err error)) error {
	return d.change(ctx, unix.RTM_NEWADDR, addrs, failed)
}

// Remove takes addresses from the device, and calls failed for each that it could not. That it has it not is no error. The error
// wraps ErrNoDevice if there is no device.
func (d *device) Remove(ctx context.Context, addrs []netip.Addr, failed func(i int, err error)) error {
	return d.change(ctx, unix.RTM_DELADDR, addrs, failed)
}

// change adds or removes addresses, many in one system call.
func (d *device) change(ctx context.Context, typ uint16, addrs []netip.Addr, failed func(i int, err error)) error {
	adding, doing := typ == unix.RTM_NEWADDR, "take service address %s from device %s: %w"
	if adding {
		doing = "give device %[2]s the service address %[1]s: %[3]w"
	}
	index, err := d.ready(ctx)
	if errors.Is(err, ErrOtherDevice) && !adding {
		return nil // where there is no device there are no addresses
	}
	failures := nlconn.Failures{Failed: failed}
	next := 0
	for piece := range slices.Chunk(addrs, d.piece) {
		fail := func(i int, err error) { failures.Add(next+i, fmt.Errorf(doing, piece[i], Device, d.explain(err))) }
		if err == nil {
			err = d.write(ctx, index, typ, piece, fail)
		}
		if err != nil { // that of the first piece that could not be sent is that of all others
			for i := range piece {
				fail(i, err)
			}
		}
		next += len(piece)
	}
	return failures.Err(len(addrs))
}

// ready returns the number of the device. Where there could be none it looks again.
func (d *device) ready(ctx context.Context) (int32, error) {
	d.mu.Lock()
	index, link := d.index, d.link
	d.mu.Unlock()
	if index == 0 && link != nil {
		if err := d.Ensure(ctx); err != nil {
			return 0, err
		}
		d.mu.Lock()
		index = d.index
		d.mu.Unlock()
	}
	if index == 0 {
		return 0, ErrNoDevice
	}
	return index, nil
}

// explain says what to do about a refusal.
func (d *device) explain(err error) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: %w", ErrNoDevice, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run as root, or with CAP_NET_ADMIN", err)
	case errors.Is(err, unix.EACCES) && d.family == lb.IPv6:
		return fmt.Errorf("%w: the device must take addresses of IPv6: set sysctl net.ipv6.conf.%s.disable_ipv6=0", err, Device)
	}
	return err
}

// write writes as many addresses as go at once.
func (d *device) write(ctx context.Context, index int32, typ uint16, addrs []netip.Addr, failed func(i int, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	adding := typ == unix.RTM_NEWADDR
	was := d.expect(addrs, adding)
	d.out.B = d.out.B[:0]
	for _, a := range addrs {
		flags, bits := uint16(0), a.BitLen()
		if adding {
			flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		} else if others, there := was[a]; there {
			bits = others
		}
		d.append(index, typ, flags, a, bits)
	}
	d.Sent(len(addrs), len(d.out.B))
	var refused, unchanged []netip.Addr // of which there is no notification
	err := d.conn.Each(ctx, d.out.B, func(i int, err error) {
		if err != nil {
			unchanged = append(unchanged, addrs[i])
		}
		if err == nil || adding && errors.Is(err, unix.EEXIST) || !adding && errors.Is(err, unix.EADDRNOTAVAIL) {
			return
		}
		refused = append(refused, addrs[i])
		failed(i, err)
	})
	if err != nil {
		refused, unchanged = addrs, addrs
	}
	d.mu.Lock()
	for _, a := range refused { // it is as it was, as far as anybody knows
		if bits, there := was[a]; there {
			d.ours[a] = bits
		} else {
			delete(d.ours, a)
		}
	}
	d.settle(unchanged...)
	d.mu.Unlock()
	if err != nil || !adding || d.family == lb.IPv4 {
		return err
	}
	return d.settled(ctx, index)
}

// expect takes in what we are about to do, before the kernel tells of it. It returns which of the addresses were there.
func (d *device) expect(addrs []netip.Addr, there bool) (was map[netip.Addr]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was = make(map[netip.Addr]int, len(addrs))
	for _, a := range addrs {
		if bits, known := d.ours[a]; known {
			was[a] = bits
		}
		d.own[a]++
		if there {
			d.ours[a] = a.BitLen()
		} else {
			delete(d.ours, a)
		}
	}
	return was
}

// append appends a request about an address.
func (d *device) append(index int32, typ, flags uint16, a netip.Addr, bits int) {
	of := rtnl.Address{Addr: a, Bits: bits, Index: index, Scope: unix.RT_SCOPE_HOST, Flags: unix.IFA_F_NOPREFIXROUTE}
	if d.family == lb.IPv6 { // whose addresses have no scope that is given, and would be looked for on the link first
		of.Flags |= unix.IFA_F_NODAD | unix.IFA_F_DEPRECATED
	}
	rtnl.AppendAddress(&d.out, typ, flags|unix.NLM_F_ACK, of)
}

// settleWithin is how long to wait for notifications of addresses. They come within milliseconds, if none is lost; and if one is,
// the address is the node's by then.
const settleWithin = time.Second

// settled waits until the kernel leads packets to addresses of IPv6 that it has taken, which it does a moment later: it tells of each and
// then makes its route, both under the lock that changes of interfaces need.
func (d *device) settled(ctx context.Context, index int32) error {
	late := time.NewTimer(settleWithin)
	defer late.Stop()
	for patient := true; patient && d.awaits(index); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.quiet:
		case <-late.C:
			patient = false
		}
	}
	d.Sent(1, 0)
	err := d.conn.Do(ctx, rtnl.ChangeLink(rtnl.Link{Index: index}, 0), nil) // which changes nothing, and waits for the lock
	if errors.Is(err, unix.ENODEV) {                                        // as others tell
		return nil
	}
	return err
}

func (d *device) awaits(index int32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.own) > 0 && d.index == index
}
