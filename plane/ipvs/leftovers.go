//go:build linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// DeviceType is the type of interface of Device. Tests change it on kernels without it.
var DeviceType = "dummy"

// cleaner removes the objects of mode ipvs other than its iptables rules.
type cleaner struct {
	mode.Removal
	exclude []netip.Prefix
	report  mode.Report
	routes  *netlink.Conn
	sets    *ipset.Conn     // nil if the kernel has no ipsets
	link    route.Link      // kube-ipvs0; zero if we have no such device
	addrs   []route.Address // of all interfaces
}

func remove(ctx context.Context, what mode.Removal) (mode.Report, error) {
	c := cleaner{Removal: what, exclude: optionsOf(what.Blocks).excluded()}
	err := errors.Join(c.run(ctx)...)
	return c.report, err
}

// run removes the virtual servers, once their connections have ended, then the addresses, and then
// the chain that guards those (TN-67). It removes the sets last, because that chain uses them.
func (c *cleaner) run(ctx context.Context) (errs []error) {
	if err := c.open(); err != nil {
		errs = append(errs, err)
	}
	defer c.close()
	if c.routes == nil {
		return errs
	}
	var err error
	c.link, err = route.FindLink(ctx, c.routes, Device)
	if err != nil {
		errs = append(errs, err)
	}
	if c.link.Index != 0 && c.link.Kind != DeviceType {
		c.report.Leave("device %s is of type %s: it is not a kube-proxy's", Device, c.link.Kind)
		c.link = route.Link{}
	}
	c.addrs, err = route.Addresses(ctx, c.routes, unix.AF_UNSPEC)
	if err != nil {
		return append(errs, err)
	}
	if kernel.HasIPVS() {
		limit, cancel := context.WithTimeout(ctx, c.Drain)
		defer cancel()
		for _, fam := range c.Families {
			l, err := c.read(ctx, fam)
			errs = append(errs, err, c.servers(limit, l))
		}
	}
	if ctx.Err() != nil { // the next process removes the rest, whose connections continue
		return append(errs, ctx.Err())
	}
	if c.link.Index != 0 {
		if err := c.device(ctx); err != nil {
			return append(errs, err) // the chain stays with the addresses
		}
	}
	for _, fam := range c.Families {
		r, err := xtables.RemoveKept(ctx, xtables.Layout{Family: fam, Ours: xtables.IsGuard}, "ipvs")
		c.report.Removed, c.report.Left = append(c.report.Removed, r.Removed...), append(c.report.Left, r.Left...)
		errs = append(errs, err)
	}
	return append(errs, c.ipsets())
}

func (c *cleaner) open() (err error) {
	c.routes, err = netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil || !ipset.Loaded() {
		return err
	}
	c.sets, err = ipset.Open()
	if errors.Is(err, ipset.ErrUnsupported) {
		return nil
	}
	return err
}

func (c *cleaner) close() {
	if c.routes != nil {
		c.routes.Close()
	}
	if c.sets != nil {
		c.sets.Close()
	}
}

// read returns a ledger with the addresses and members that identify a kube-proxy's virtual
// servers.
func (c *cleaner) read(ctx context.Context, fam lb.Family) (*ledger, error) {
	l := newLedger(layout{family: fam, mark: marks{1 << c.MasqueradeBit}})
	for _, a := range c.addrs {
		l.own = append(l.own, a.Addr)
		if a.Index == c.link.Index {
			l.addrs[a.Addr] = address{has: true}
		}
	}
	if c.sets == nil {
		return l, nil
	}
	var errs []error
	for s := range setCount {
		_, err := c.sets.Members(ctx, s.name(fam), func(w ipset.Member) {
			m, as := memberOf(s, w)
			l.members[m] = counted{has: true, is: as}
		})
		if err != nil && !errors.Is(err, ipset.ErrNoSet) {
			errs = append(errs, err)
		}
	}
	return l, errors.Join(errs...)
}

// servers deletes a kube-proxy's virtual servers of a family, once their connections have ended or
// limit is over; none if limit was cancelled.
func (c *cleaner) servers(limit context.Context, l *ledger) error {
	ctx := context.WithoutCancel(limit)
	conn, err := ipvs.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	var ours []ipvs.Op
	others, known := 0, l.known()
	err = conn.Services(ctx, func(s ipvs.ServiceState) error {
		switch {
		case s.Family != wireFamily(l.family), s.Mark == 0 && lb.Within(c.exclude, s.Addr.Addr()):
		case l.owns(known, s.ServiceID):
			ours = append(ours, ipvs.Op{Verb: ipvs.DelService, Service: ipvs.Service{ServiceID: s.ServiceID}})
		case s.Mark == 0:
			others++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if others > 0 {
		c.report.Leave("%d virtual servers of %s stay: nothing shows that a kube-proxy made them; ipvsadm lists them",
			others, l.family)
	}
	var errs []error
	if c.Drain > 0 {
		cut, err := drain(limit, conn, ours)
		if errors.Is(limit.Err(), context.Canceled) {
			return nil
		}
		errs = append(errs, err)
		c.report.Count(cut, "connections through virtual servers of %s, which had not ended in %s", l.family, c.Drain)
	}
	n := len(ours)
	_ = conn.Do(ctx, ours, func(_ int, err error) {
		n--
		if !errors.Is(err, unix.ESRCH) { // ESRCH: it no longer exists
			errs = append(errs, err)
		}
	})
	c.report.Count(n, "virtual servers of %s", l.family)
	return errors.Join(errs...)
}

// drainLook is the pause between two checks for connections. It is longer than a handshake, after
// which a connection counts.
const drainLook = 200 * time.Millisecond

// drain waits until the servers have no established connections, or ctx ends; then it returns their
// number. UDP has no such connections.
func drain(ctx context.Context, conn *ipvs.Conn, servers []ipvs.Op) (cut int, err error) {
	for len(servers) > 0 {
		select {
		case <-ctx.Done():
			return cut, nil
		case <-time.After(drainLook):
		}
		cut = 0
		var busy []ipvs.Op
		for _, s := range servers {
			all, err := conn.Destinations(context.WithoutCancel(ctx), s.Service.ServiceID)
			if err != nil {
				return 0, fmt.Errorf("%w: its connections are cut off now", err)
			}
			n := 0
			for _, d := range all {
				n += int(d.Active)
			}
			if n > 0 {
				cut += n
				busy = append(busy, s)
			}
		}
		servers = busy
	}
	return 0, nil
}

// device deletes kube-ipvs0, or the families' addresses on it if it has others.
func (c *cleaner) device(ctx context.Context) error {
	var ours []route.Address
	stay := 0
	for _, a := range c.addrs {
		switch {
		case a.Index != c.link.Index, linkLocal(a.Addr): // every device has a link-local address
		case !slices.Contains(c.Families, lb.FamilyOf(a.Addr)), lb.Within(c.exclude, a.Addr):
			stay++
		default:
			ours = append(ours, a)
		}
	}
	if stay == 0 {
		if err := c.routes.Do(ctx, route.DeleteLink(c.link.Index), nil); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete device %s: %w", Device, err)
		}
		c.report.Removed = append(c.report.Removed, fmt.Sprintf("device %s with %d service addresses", Device,
			len(ours)))
		return nil
	}
	var errs []error
	n := 0
	for _, a := range ours {
		var e netlink.Encoder
		route.AppendAddress(&e, unix.RTM_DELADDR, unix.NLM_F_ACK, a)
		if err := c.routes.Do(ctx, e.B, nil); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("delete address %s of %s: %w", a.Addr, Device, err))
			continue
		}
		n++
	}
	c.report.Count(n, "service addresses of device %s", Device)
	c.report.Leave("device %s stays: it has %d other addresses", Device, stay)
	return errors.Join(errs...)
}

// ipsets destroys the sets of the families, and their temporary replacements.
func (c *cleaner) ipsets() error {
	if c.sets == nil {
		return nil
	}
	var errs []error
	n := 0
	for _, fam := range c.Families {
		for _, name := range SetNames(fam) {
			for _, name := range []string{name, ipset.Spare(name)} {
				switch err := c.sets.Destroy(context.Background(), name); {
				case errors.Is(err, ipset.ErrNoSet):
				case errors.Is(err, ipset.ErrInUse):
					errs = append(errs, fmt.Errorf("%w; they belong to other programs, or could not be removed: "+
						"delete them, then run --cleanup again", err))
				case err != nil:
					errs = append(errs, err)
				default:
					n++
				}
			}
		}
	}
	c.report.Count(n, "ipsets")
	return errors.Join(errs...)
}

// SetNames returns the names of the ipsets of a family (DP-32), and those of earlier versions.
func SetNames(f lb.Family) (names []string) {
	for s := range setCount {
		names = append(names, s.name(f))
	}
	prefix := "KUBE-"
	if f == lb.IPv6 {
		prefix = "KUBE-6-"
	}
	for _, old := range []string{"NODE-PORT-SCTP", "NODE-PORT-LOCAL-SCTP"} {
		names = append(names, prefix+old)
	}
	return names
}
