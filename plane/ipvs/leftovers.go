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

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Device is the interface that holds the service addresses in the mode ipvs (G3, DP-31).
const Device = "kube-ipvs0"

// DeviceType is the kind of interface that it is. Tests change it on kernels that have none.
var DeviceType = "dummy"

// server is what tells virtual servers apart.
type server struct {
	addr  netip.Addr
	proto uint8
	port  uint16
}

// known is what tells which virtual servers are a kube-proxy's, see the package comment.
type known struct {
	addrs     map[netip.Addr]bool // on kube-ipvs0, or in a set of addresses
	frontends map[server]bool
	nodePorts map[server]bool // without addresses
	local     map[netip.Addr]bool
}

// probe is the virtual server by which upstream tries a scheduler.
var probe = server{netip.MustParseAddr("198.51.100.0"), unix.IPPROTO_TCP, 20000}

func (k *known) is(s server) bool {
	return k.addrs[s.addr] || k.frontends[s] || s == probe ||
		k.local[s.addr] && k.nodePorts[server{proto: s.proto, port: s.port}]
}

// sets takes in what the ipsets tell.
func (k *known) sets(sets []*ipset) {
	for _, set := range sets {
		name := strings.TrimPrefix(strings.TrimPrefix(set.name, "KUBE-"), "6-")
		for _, e := range set.entries {
			switch {
			case name == "IPVS-IPS":
				k.addrs[e.addr] = true
			case strings.HasPrefix(name, "NODE-PORT-"):
				proto := uint8(unix.IPPROTO_SCTP)
				switch {
				case strings.HasSuffix(name, "-TCP"):
					proto = unix.IPPROTO_TCP
				case strings.HasSuffix(name, "-UDP"):
					proto = unix.IPPROTO_UDP
				}
				k.nodePorts[server{proto: proto, port: e.port}] = true
			case name == "CLUSTER-IP", strings.HasPrefix(name, "EXTERNAL-IP"), name == "LOAD-BALANCER", name == "LOAD-BALANCER-LOCAL", name == "LOAD-BALANCER-FW":
				k.frontends[server(e)] = true
			}
		}
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
	err := errors.Join(c.virtualServers(ctx, what.Families)...)
	return c.report, err
}

func (c *cleaner) virtualServers(ctx context.Context, families []lb.Family) (errs []error) {
	k := &known{map[netip.Addr]bool{}, map[server]bool{}, map[server]bool{}, map[netip.Addr]bool{}}
	var sets []*ipset
	for _, fam := range families {
		of, err := listIPSets(fam)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the ipsets of %s: %w", fam, err))
		}
		sets = append(sets, of...)
	}
	k.sets(sets)
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
		for _, fam := range families {
			errs = append(errs, c.servers(limit, fam, k))
			if ctx.Err() != nil { // what stays is for the next process to remove: its connections go on
				return append(errs, ctx.Err())
			}
		}
	}
	if link != nil {
		errs = append(errs, c.device(link, families))
	}
	return append(errs, c.ipsets(sets))
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

func (c *cleaner) excluded(a netip.Addr) bool {
	return slices.ContainsFunc(c.exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}

// servers deletes the virtual servers of a family that are a kube-proxy's, once their connections have ended or the limit
// has; none if it was not the time that ended that.
func (c *cleaner) servers(limit context.Context, fam lb.Family, k *known) error {
	h, err := ipvs.New("")
	if err != nil {
		return fmt.Errorf("open a socket to IPVS: %w", err)
	}
	defer h.Close()
	all, err := h.GetServices()
	if err != nil {
		return fmt.Errorf("list the virtual servers: %w", err)
	}
	var ours []*ipvs.Service
	others := 0
	for _, s := range all {
		is := server{addrOf(s.Address), uint8(s.Protocol), s.Port}
		switch {
		case s.FWMark != 0, (s.AddressFamily == unix.AF_INET6) != (fam == lb.IPv6):
		case c.excluded(is.addr):
		case !k.is(is):
			others++
		default:
			ours = append(ours, s)
		}
	}
	if others > 0 {
		c.report.Leave("%d virtual servers of %s stay: nothing shows that a kube-proxy made them; ipvsadm lists them", others, fam)
	}
	var errs []error
	if c.drain > 0 {
		cut, err := drain(limit, h, ours)
		if errors.Is(limit.Err(), context.Canceled) {
			return nil
		}
		errs = append(errs, err)
		c.report.Count(cut, "connections through virtual servers of %s, which had not ended in %s", fam, c.drain)
	}
	n := 0
	for _, s := range ours {
		if err := h.DelService(s); err != nil && !errors.Is(err, unix.ESRCH) { // ESRCH: it is gone
			errs = append(errs, fmt.Errorf("delete the virtual server %s: %w", nameOf(s), err))
			continue
		}
		n++
	}
	c.report.Count(n, "virtual servers of %s", fam)
	return errors.Join(errs...)
}

func nameOf(s *ipvs.Service) string {
	return fmt.Sprintf("%s, protocol %d", netip.AddrPortFrom(addrOf(s.Address), s.Port), s.Protocol)
}

// drainLook is the time between two looks at connections. A handshake that was under way ends in it, and only then a
// connection counts.
const drainLook = 200 * time.Millisecond

// drain waits until the servers have no established connections, or ctx ends; then it returns how many they have.
func drain(ctx context.Context, h *ipvs.Handle, servers []*ipvs.Service) (cut int, err error) {
	for len(servers) > 0 {
		select {
		case <-ctx.Done():
			return cut, nil
		case <-time.After(drainLook):
		}
		cut = 0
		var busy []*ipvs.Service
		for _, s := range servers {
			n, err := connections(h, s)
			if err != nil {
				return 0, fmt.Errorf("list the connections of the virtual server %s, which are cut off now: %w", nameOf(s), err)
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

// connections counts the established connections of a server. UDP has none.
func connections(h *ipvs.Handle, s *ipvs.Service) (n int, err error) {
	destinations, err := h.GetDestinations(s)
	if errors.Is(err, unix.ESRCH) { // it is gone
		return 0, nil
	}
	for _, d := range destinations {
		n += d.ActiveConnections
	}
	return n, err
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
		case !slices.Contains(families, fam), c.excluded(ip):
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
func (c *cleaner) ipsets(sets []*ipset) error {
	var errs []error
	n := 0
	for _, set := range sets {
		switch err := destroyIPSet(set.name); {
		case errors.Is(err, errInUse):
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
