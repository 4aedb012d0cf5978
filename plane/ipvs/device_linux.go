package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
)

// ErrNoDevice is wrapped by errors of operations that need kube-ipvs0 when it does not exist.
var ErrNoDevice = errors.New("there is no " + Device)

// device is kube-ipvs0 for one family. It also tracks the addresses of the node's other devices. It
// follows the kernel's notifications, so its cost follows the changes.
//
// Only kube-proxy uses the device: addresses without a Service are left from an earlier run, or
// from upstream. The device stays down, as upstream's does. Its addresses are still the node's, and
// it gets no routes and no link-local address. The addresses have scope host, and for IPv6
// preferred lifetime 0. Otherwise the kernel would use one as source address on an interface
// without an address, such as a pod's. --ipvs-strict-arp decides about ARP for them.
//
// News, Notify and Close are safe for concurrent use; only one goroutine at a time may use the
// rest.
type device struct {
	family lb.Family
	conn   *netlink.Conn
	events *netlink.Conn
	done   chan struct{}
	bulk   netlink.Bulk
	// lengths are the prefix lengths of addresses that other programs added to the device.
	lengths map[netip.Addr]int

	// mu is held while all addresses are listed: notifications wait, because they may be older or
	// newer.
	mu     sync.Mutex
	notify func()
	index  int32 // of the device, 0 if it does not exist
	// own counts notifications of our own writes that have not arrived.
	own   map[netip.Addr]int
	quiet chan struct{} // has a value when own may be empty
	// others are the addresses of other devices, with the indexes of these.
	others    map[netip.Addr][]int32
	listed    bool // others is known
	addresses bool // other programs changed addresses of the device
	place     bool // other programs changed the result of Place
}

// requestsAtOnce is the number of requests in one system call. Their replies must fit the receive
// buffer.
const requestsAtOnce = 256

// openDevice listens in the network namespace of the calling thread. It changes nothing.
func openDevice(family lb.Family) (*device, error) {
	d := &device{family: family, done: make(chan struct{}), bulk: netlink.Bulk{Piece: requestsAtOnce},
		lengths: map[netip.Addr]int{}, notify: func() {}, own: map[netip.Addr]int{}, quiet: make(chan struct{}, 1),
		others: map[netip.Addr][]int32{}}
	var err error
	d.conn, d.events, err = route.Open(d.number(), unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", Device, err)
	}
	go func() {
		defer close(d.done)
		d.events.Listen(d.notice, d.lost)
	}()
	return d, nil
}

// number is the kernel's number of the family.
func (d *device) number() byte { return byte(wireFamily(d.family)) }

// Close ends listening. The kernel keeps the device.
func (d *device) Close() error {
	err := d.events.Close()
	<-d.done
	return cmp.Or(err, d.conn.Close())
}

// Notify implements [Addresses]. Another goroutine calls the function, which must not call the
// device.
func (d *device) Notify(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = f
}

// News implements [Addresses].
func (d *device) News() (addresses, place bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	addresses, place = d.addresses, d.place
	d.addresses, d.place = false, false
	return addresses, place
}

// lost is called when the kernel dropped notifications.
func (d *device) lost() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listed, d.addresses, d.place = false, true, true
	d.forgetOwn()
	d.notify()
}

// forgetOwn stops waiting for notifications of our own writes.
func (d *device) forgetOwn() {
	clear(d.own)
	d.quieten()
}

// settle records that a notification of our own write has arrived, or will not arrive.
func (d *device) settle(a netip.Addr) {
	d.own[a]--
	if d.own[a] <= 0 {
		delete(d.own, a)
	}
	d.quieten()
}

func (d *device) quieten() {
	if len(d.own) > 0 {
		return
	}
	select {
	case d.quiet <- struct{}{}:
	default:
	}
}

// notice handles a notification.
func (d *device) notice(m netlink.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch m.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, ok := route.ParseAddress(m.Body)
		switch {
		case !ok || lb.FamilyOf(a.Addr) != d.family:
		case d.index == 0 || a.Index != d.index:
			d.noticeOthers(a, m.Type == unix.RTM_NEWADDR)
		case d.own[a.Addr] > 0:
			d.settle(a.Addr)
		case !linkLocal(a.Addr):
			d.addresses = true
			d.notify()
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if l, ok := route.ParseLink(m.Body); ok {
			d.noticeLink(l, m.Type == unix.RTM_NEWLINK)
		}
	}
}

func (d *device) noticeOthers(a route.Address, there bool) {
	if d.note(a, there) && !linkLocal(a.Addr) {
		d.place = true
		d.notify()
	}
}

// note records whether another device has an address, and reports whether the node gained or lost
// it.
func (d *device) note(a route.Address, there bool) (changed bool) {
	if a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0 {
		there = false // not the node's address yet; another notification comes when it is
	}
	on := d.others[a.Addr]
	i := slices.Index(on, a.Index)
	switch {
	case there && i < 0:
		d.others[a.Addr] = append(on, a.Index)
		return len(on) == 0
	case there || i < 0:
		return false
	case len(on) > 1:
		d.others[a.Addr] = slices.Delete(on, i, i+1)
		return false
	}
	delete(d.others, a.Addr)
	return true
}

func (d *device) noticeLink(l route.Link, there bool) {
	switch {
	case l.Index == d.index && (!there || l.Name != Device):
		d.index, d.addresses = 0, true
		d.forgetOwn()
		d.notify()
	case l.Index != d.index && !there: // its addresses may have gone without a notification
		for a := range d.others {
			d.noticeOthers(route.Address{Addr: a, Index: l.Index}, false)
		}
	}
}

// linkLocal reports whether an address is link-local. Those come and go with devices, such as
// pods'.
func linkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// Ensure implements [Addresses].
func (d *device) Ensure(ctx context.Context) error {
	err := d.find(ctx)
	if !errors.Is(err, ErrNoDevice) {
		return err
	}
	made := route.Link{Name: Device, Kind: DeviceType, Flags: unix.IFF_NOARP}
	err = d.conn.Do(ctx, route.ChangeLink(made, unix.IFF_NOARP), nil)
	if err != nil && !errors.Is(err, unix.EEXIST) { // the other family's plane may have created it
		return fmt.Errorf("make device %s: %w", Device, err)
	}
	return d.find(ctx)
}

// find looks for the device. The error wraps ErrNoDevice if it does not exist.
func (d *device) find(ctx context.Context) error {
	link, err := findDevice(ctx, d.conn)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index != link.Index {
		d.index, d.listed = link.Index, false
		d.forgetOwn()
	}
	if err == nil && link.Index == 0 {
		return ErrNoDevice
	}
	return err
}

// findDevice returns kube-ipvs0, with index 0 if it does not exist. It fails if the device is not
// of kube-proxy's type.
func findDevice(ctx context.Context, conn netlink.Asker) (route.Link, error) {
	link, err := route.FindLink(ctx, conn, Device)
	if err == nil && link.Index != 0 && link.Kind != DeviceType {
		return route.Link{}, fmt.Errorf("there is a device %s of type %q, and it must be of type %s: "+
			"rename it, or delete it by ip link delete %s", Device, link.Kind, DeviceType, Device)
	}
	return link, err
}

// Addresses implements [Addresses]. The error wraps ErrNoDevice if the device does not exist.
func (d *device) Addresses(ctx context.Context) ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ours, err := d.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", Device, err)
	}
	if d.index == 0 {
		return nil, ErrNoDevice
	}
	return ours, nil
}

// list reads the addresses of all devices from the kernel, and returns those of this one.
func (d *device) list(ctx context.Context) (ours []netip.Addr, err error) {
	all, err := route.Addresses(ctx, d.conn, d.number())
	d.listed = err == nil
	if err != nil {
		return nil, err
	}
	clear(d.lengths)
	before := d.others
	d.others, d.addresses = map[netip.Addr][]int32{}, false
	for _, a := range all {
		switch {
		case a.Index != d.index || d.index == 0:
			d.note(a, true)
		case !linkLocal(a.Addr):
			ours = append(ours, a.Addr)
			if a.Bits != a.Addr.BitLen() {
				d.lengths[a.Addr] = a.Bits
			}
		}
	}
	d.place = d.place || lacks(before, d.others) || lacks(d.others, before)
	return ours, nil
}

// lacks reports whether some has no entry of an address of all, link-local ones aside.
func lacks(some, all map[netip.Addr][]int32) bool {
	for a := range all {
		if _, ok := some[a]; !ok && !linkLocal(a) {
			return true
		}
	}
	return false
}

// Place implements [Addresses]. It queries the kernel only on the first call, and after
// notifications were lost.
func (d *device) Place(ctx context.Context) (Place, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.listed {
		if _, err := d.list(ctx); err != nil {
			return Place{}, err
		}
	}
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

// Add implements [Addresses]. When it returns, the kernel delivers packets to the addresses here.
func (d *device) Add(ctx context.Context, addrs []netip.Addr, failed func(i int, err error)) error {
	err := d.change(ctx, unix.RTM_NEWADDR, addrs, failed)
	if d.family == lb.IPv6 && len(addrs) > 0 {
		return cmp.Or(err, d.settled(ctx))
	}
	return err
}

// Remove implements [Addresses].
func (d *device) Remove(ctx context.Context, addrs []netip.Addr, failed func(i int, err error)) error {
	return d.change(ctx, unix.RTM_DELADDR, addrs, failed)
}

func (d *device) change(ctx context.Context, typ uint16, addrs []netip.Addr, failed func(i int, err error)) error {
	d.mu.Lock()
	c := &change{device: d, index: d.index, typ: typ, addrs: addrs, failures: netlink.Failures{Failed: failed}}
	d.mu.Unlock()
	d.bulk.Do(ctx, d.conn, len(addrs), c)
	return c.failures.Err(len(addrs))
}

// change is a call of Add or Remove in progress.
type change struct {
	*device
	index    int32
	typ      uint16
	addrs    []netip.Addr
	failures netlink.Failures
}

// Append implements [netlink.Operations].
func (c *change) Append(e *netlink.Encoder, i int) error {
	if c.index == 0 {
		return ErrNoDevice
	}
	a := c.addrs[i]
	of := route.Address{Addr: a, Bits: a.BitLen(), Index: c.index, Scope: unix.RT_SCOPE_HOST,
		Flags: unix.IFA_F_NOPREFIXROUTE}
	if c.family == lb.IPv6 { // the kernel sets the scope itself, and would look for duplicates on the link
		of.Flags |= unix.IFA_F_NODAD | unix.IFA_F_DEPRECATED
	}
	flags := uint16(unix.NLM_F_ACK)
	if c.typ == unix.RTM_NEWADDR {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	} else if bits, odd := c.lengths[a]; odd {
		of.Bits = bits
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own[a]++
	route.AppendAddress(e, c.typ, flags, of)
	return nil
}

// Done implements [netlink.Operations].
func (c *change) Done(i int, err error) {
	if err == nil {
		return
	}
	a := c.addrs[i]
	c.mu.Lock()
	c.settle(a) // no notification will arrive
	c.mu.Unlock()
	doing := "take service address %s from device %s: %w"
	switch adding := c.typ == unix.RTM_NEWADDR; {
	case adding && errors.Is(err, unix.EEXIST), !adding && errors.Is(err, unix.EADDRNOTAVAIL):
		return
	case adding:
		doing = "give device %[2]s the service address %[1]s: %[3]w"
	}
	switch {
	case errors.Is(err, unix.ENODEV):
		err = fmt.Errorf("%w: %w", ErrNoDevice, err)
	case errors.Is(err, unix.EACCES) && c.family == lb.IPv6:
		err = fmt.Errorf("%w: the device must take IPv6 addresses: set sysctl net.ipv6.conf.%s.disable_ipv6=0", err,
			Device)
	}
	c.failures.Add(i, fmt.Errorf(doing, a, Device, err))
}

// settleWithin is the timeout for notifications of new addresses. They arrive within milliseconds.
const settleWithin = 5 * time.Second

// settled waits until the kernel delivers packets to new IPv6 addresses locally. The kernel sends
// the notification of an address shortly after it acknowledges the request, and then adds the
// route. Both happen under the lock that changes of interfaces need.
func (d *device) settled(ctx context.Context) error {
	late := time.After(settleWithin)
	for d.awaits() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.quiet:
		case <-late:
			d.lost()
		}
	}
	d.mu.Lock()
	index := d.index
	d.mu.Unlock()
	if index == 0 {
		return nil
	}
	// This request changes nothing, but waits for the lock.
	err := d.conn.Do(ctx, route.ChangeLink(route.Link{Index: index}, 0), nil)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func (d *device) awaits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.own) > 0
}
