//go:build linux

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	sets "kube-proxy/internal/netlink/ipset"
	ipvswire "kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// DeviceType is the kind of interface that it is. Tests change it on kernels that have none.
var DeviceType = "dummy"

// known is what tells which virtual servers are a kube-proxy's, see the package comment.
type known struct {
	addrs     map[netip.Addr]bool // on kube-ipvs0, or in a set of addresses
	frontends map[lb.Key]bool
	nodePorts map[lb.Key]bool // without addresses
	local     map[netip.Addr]bool
	marks     map[uint32]bool // of sets of marks
	masq      marks           // numbers marks
}

func newKnown(masqueradeBit int) *known {
	return &known{map[netip.Addr]bool{}, map[lb.Key]bool{}, map[lb.Key]bool{}, map[netip.Addr]bool{}, map[uint32]bool{}, marks{1 << masqueradeBit}}
}

func (k *known) is(id ipvswire.ServiceID) bool {
	if id.Mark != 0 {
		_, _, ours := k.masq.number(id.Mark)
		return ours || k.marks[id.Mark]
	}
	key := keyOf(id)
	return k.addrs[key.Addr] || k.frontends[key] || id == probeID(lb.IPv4) || id == probeID(lb.IPv6) ||
		k.local[key.Addr] && k.nodePorts[lb.Key{Proto: key.Proto, Port: key.Port}]
}

// member takes in what a member of an ipset tells.
func (k *known) member(set string, m sets.Member) {
	name := strings.TrimPrefix(strings.TrimPrefix(set, "KUBE-"), "6-")
	key := lb.Key{Addr: m.Addr, Port: m.Port, Proto: lb.Proto(m.Proto)}
	switch {
	case name == "IPVS-IPS":
		k.addrs[m.Addr] = true
	case strings.HasPrefix(name, "MARK-"):
		k.frontends[key] = true  // that of a NodePort that is gone, and whose connections go on, is in no other set
		if m.Mask == wholeMark { // else it asks for masquerading alone
			k.marks[m.Mark] = true
		}
	case strings.HasPrefix(name, "NODE-PORT-"):
		key = lb.Key{Port: m.Port, Proto: lb.SCTP}
		switch {
		case strings.HasSuffix(name, "-TCP"):
			key.Proto = lb.TCP
		case strings.HasSuffix(name, "-UDP"):
			key.Proto = lb.UDP
		}
		k.nodePorts[key] = true
	case name == "CLUSTER-IP", strings.HasPrefix(name, "EXTERNAL-IP"), name == "LOAD-BALANCER", name == "LOAD-BALANCER-LOCAL", name == "LOAD-BALANCER-FW":
		k.frontends[key] = true
	}
}

// cleaner removes what the mode ipvs makes beside its iptables rules.
type cleaner struct {
	exclude []netip.Prefix
	drain   time.Duration
	report  mode.Report
}

func remove(ctx context.Context, what mode.Removal) (mode.Report, error) {
	c := cleaner{exclude: what.ExcludeCIDRs, drain: what.Drain}
	err := errors.Join(c.run(ctx, what)...)
	return c.report, err
}

// run removes the virtual servers, when their connections have ended, then the addresses, and only then the chain that keeps packets
// to these from programs of the node (TN-67). Sets go last, because that chain uses them.
func (c *cleaner) run(ctx context.Context, what mode.Removal) (errs []error) {
	k := newKnown(what.MasqueradeBit)
	names, err := readSets(ctx, what.Families, k)
	if err != nil {
		errs = append(errs, err)
	}
	link, err := netlink.LinkByName(Device)
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		errs = append(errs, fmt.Errorf("look for device %s: %w", Device, err))
	}
	if err == nil && link.Type() != DeviceType {
		c.report.Leave("device %s is of type %s: it is not a kube-proxy's", Device, link.Type())
		link = nil
	}
	if err != nil {
		link = nil
	}
	if err := k.addresses(link); err != nil {
		return append(errs, err)
	}
	if kernel.HasIPVS() {
		limit, cancel := context.WithTimeout(ctx, c.drain)
		defer cancel()
		for _, fam := range what.Families {
			errs = append(errs, c.servers(limit, fam, k))
		}
	}
	if ctx.Err() != nil { // what stays is for the next process to remove: its connections go on
		return append(errs, ctx.Err())
	}
	if link != nil {
		if err := c.device(link, what.Families); err != nil {
			return append(errs, err) // the chain stays with the addresses
		}
	}
	for _, fam := range what.Families {
		r, err := xtables.RemoveKept(ctx, xtables.Layout{Family: fam, Ours: xtables.IsGuard}, "ipvs")
		c.report.Removed, c.report.Left = append(c.report.Removed, r.Removed...), append(c.report.Left, r.Left...)
		errs = append(errs, err)
	}
	return append(errs, c.ipsets(names))
}

// readSets takes in what the ipsets of kube-proxies tell, and returns the names of those that are there.
func readSets(ctx context.Context, families []lb.Family, k *known) (names []string, err error) {
	if !sets.Loaded() {
		return nil, nil
	}
	conn, err := sets.Open()
	if errors.Is(err, sets.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, told(err)
	}
	defer conn.Close()
	headers, err := conn.Headers(ctx)
	if err != nil {
		return nil, told(err)
	}
	ours := map[string]bool{}
	for _, f := range families {
		for _, name := range SetNames(f) {
			ours[name], ours[sets.Spare(name)] = true, true
		}
	}
	var errs []error
	for _, h := range headers {
		if !ours[h.Name] {
			continue
		}
		names = append(names, h.Name)
		_, err := conn.Members(ctx, h.Name, func(m sets.Member) { k.member(h.Name, m) })
		if err != nil && !errors.Is(err, sets.ErrNoSet) {
			errs = append(errs, err)
		}
	}
	return names, errors.Join(errs...)
}

// addresses takes in which addresses are on kube-ipvs0, and which are this machine's.
func (k *known) addresses(link netlink.Link) error {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of this machine: %w", err)
	}
	for _, a := range addrs {
		k.local[addrOf(a.IP)] = true
		if link != nil && a.LinkIndex == link.Attrs().Index {
			k.addrs[addrOf(a.IP)] = true
		}
	}
	return nil
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// servers deletes the virtual servers of a family that are a kube-proxy's, once their connections have ended or the limit
// has; none if it was not the time that ended that.
func (c *cleaner) servers(limit context.Context, fam lb.Family, k *known) error {
	ctx := context.WithoutCancel(limit)
	conn, err := ipvswire.Open()
	if err != nil {
		return told(err)
	}
	defer conn.Close()
	var ours []ipvswire.Op
	others := 0
	err = conn.Services(ctx, func(s ipvswire.ServiceState) error {
		switch {
		case s.Family != wireFamily(fam), s.Mark == 0 && within(c.exclude, s.Addr.Addr()):
		case k.is(s.ServiceID):
			ours = append(ours, ipvswire.Op{Verb: ipvswire.DelService, Service: ipvswire.Service{ServiceID: s.ServiceID}})
		case s.Mark == 0:
			others++
		}
		return nil
	})
	if err != nil {
		return told(err)
	}
	if others > 0 {
		c.report.Leave("%d virtual servers of %s stay: nothing shows that a kube-proxy made them; ipvsadm lists them", others, fam)
	}
	var errs []error
	if c.drain > 0 {
		cut, err := drain(limit, conn, ours)
		if errors.Is(limit.Err(), context.Canceled) {
			return nil
		}
		errs = append(errs, err)
		c.report.Count(cut, "connections through virtual servers of %s, which had not ended in %s", fam, c.drain)
	}
	n := len(ours)
	_ = conn.Do(ctx, ours, func(_ int, err error) {
		if n--; !errors.Is(err, unix.ESRCH) { // ESRCH: it is gone
			errs = append(errs, err)
		}
	})
	c.report.Count(n, "virtual servers of %s", fam)
	return errors.Join(errs...)
}

// drainLook is the time between two looks at connections. A handshake that was under way ends in it, and only then a
// connection counts.
const drainLook = 200 * time.Millisecond

// drain waits until the servers have no established connections, or ctx ends; then it returns how many they have. UDP has none.
func drain(ctx context.Context, conn *ipvswire.Conn, servers []ipvswire.Op) (cut int, err error) {
	for len(servers) > 0 {
		select {
		case <-ctx.Done():
			return cut, nil
		case <-time.After(drainLook):
		}
		cut = 0
		var busy []ipvswire.Op
		for _, s := range servers {
			n := 0
			err := conn.Destinations(context.WithoutCancel(ctx), s.Service.ServiceID, func(d ipvswire.DestinationState) error {
				n += int(d.Active)
				return nil
			})
			if err != nil {
				return 0, fmt.Errorf("%w: its connections are cut off now", err)
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
func (c *cleaner) device(link netlink.Link, families []lb.Family) error {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the addresses of %s: %w", Device, err)
	}
	var ours []netlink.Addr
	stay := 0
	for _, a := range addrs {
		ip := addrOf(a.IP)
		fam := lb.IPv4
		if ip.Is6() {
			fam = lb.IPv6
		}
		switch {
		case ip.IsLinkLocalUnicast() && ip.Is6(): // every device has one
		case !slices.Contains(families, fam), within(c.exclude, ip):
			stay++
		default:
			ours = append(ours, a)
		}
	}
	if stay == 0 {
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete device %s: %w", Device, err)
		}
		c.report.Removed = append(c.report.Removed, fmt.Sprintf("device %s with %d service addresses", Device, len(ours)))
		return nil
	}
	var errs []error
	n := 0
	for i := range ours {
		if err := netlink.AddrDel(link, &ours[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("delete address %s of %s: %w", ours[i].IP, Device, err))
			continue
		}
		n++
	}
	c.report.Count(n, "service addresses of device %s", Device)
	c.report.Leave("device %s stays: it has %d other addresses", Device, stay)
	return errors.Join(errs...)
}

// ipsets destroys sets.
func (c *cleaner) ipsets(names []string) error {
	if len(names) == 0 {
		return nil
	}
	conn, err := sets.Open()
	if err != nil {
		return told(err)
	}
	defer conn.Close()
	var errs []error
	n := 0
	for _, name := range names {
		switch err := conn.Destroy(context.Background(), name); {
		case errors.Is(err, sets.ErrNoSet):
		case errors.Is(err, sets.ErrInUse):
			errs = append(errs, fmt.Errorf("%w, of others or such as could not be removed: delete them, then run --cleanup again", err))
		case err != nil:
			errs = append(errs, err)
		default:
			n++
		}
	}
	c.report.Count(n, "ipsets")
	return errors.Join(errs...)
}

// SetNames are the names of the ipsets of a family (DP-32), and those of earlier versions.
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
