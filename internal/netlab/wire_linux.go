package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostSysctls hold in every host; nodeSysctls come on top in nodes. The "default"
// rows count for interfaces made later, so they must be written before any is.
var hostSysctls = [][2]string{
	{"ipv4/conf/all/rp_filter", "0"},
	{"ipv4/conf/default/rp_filter", "0"},
	{"ipv4/conf/all/send_redirects", "0"},
	{"ipv4/conf/default/send_redirects", "0"},
	{"ipv4/conf/all/accept_redirects", "0"},
	{"ipv4/conf/default/accept_redirects", "0"},
	{"ipv4/icmp_ratemask", "0"},
	{"ipv4/ping_group_range", "0 2147483647"},
	{"ipv6/conf/all/disable_ipv6", "0"},
	{"ipv6/conf/default/disable_ipv6", "0"},
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/default/dad_transmits", "0"},
	{"ipv6/conf/default/accept_ra", "0"},
	{"ipv6/conf/all/accept_redirects", "0"},
	{"ipv6/conf/default/accept_redirects", "0"},
	{"ipv6/icmp/ratelimit", "0"},
}

var nodeSysctls = [][2]string{
	{"ipv4/ip_forward", "1"},
	{"ipv6/conf/all/forwarding", "1"},
}

// optionalSysctls exist on some kernels only, or with br_netfilter.
var optionalSysctls = [][2]string{
	{"ipv6/icmp/ratemask", "3"}, // time exceeded alone: never what a test waits for
	{"bridge/bridge-nf-call-iptables", "0"},
	{"bridge/bridge-nf-call-ip6tables", "0"},
	{"bridge/bridge-nf-call-arptables", "0"},
}

// setSysctls configures the thread's namespace for the host.
func setSysctls(name string) error {
	rows := hostSysctls
	if name == Node1 || name == Node2 {
		// First the nodes' rows: turning forwarding on resets other settings.
		rows = append(append([][2]string(nil), nodeSysctls...), hostSysctls...)
	}
	for _, s := range rows {
		if err := os.WriteFile("/proc/sys/net/"+s[0], []byte(s[1]), 0); err != nil {
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	for _, s := range optionalSysctls {
		err := os.WriteFile("/proc/sys/net/"+s[0], []byte(s[1]), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	return nil
}

// wiring is the state of one run of wire: a netlink handle per host.
type wiring struct {
	lab     *Lab
	handles map[string]*netlink.Handle
	index   map[string]int // "host/interface" → ifindex there
}

// wire makes links, addresses, neighbours and routes, and waits until they carry.
func (l *Lab) wire() error {
	w := &wiring{lab: l, handles: map[string]*netlink.Handle{}, index: map[string]int{}}
	defer func() {
		for _, h := range w.handles {
			h.Close()
		}
	}()
	for name, ns := range l.ns {
		h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink socket in %s: %w", name, err)
		}
		w.handles[name] = h
		if err := h.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1}}); err != nil {
			return fmt.Errorf("loopback of %s up: %w", name, err)
		}
	}
	if err := w.bridge(switchHost, "br0", mac(0, 0, 0)); err != nil {
		return err
	}
	for i, h := range l.hosts {
		var err error
		if h.Pod() {
			err = w.pod(i, h)
		} else {
			err = w.lanHost(i, h)
		}
		if err != nil {
			return fmt.Errorf("wire %s: %w", h.Name, err)
		}
	}
	return w.waitReady()
}

// mac makes a locally administered address, unique within a lab.
func mac(kind, n, side byte) net.HardwareAddr {
	return net.HardwareAddr{0x02, 'k', 'p', kind, n, side}
}

// bridge makes a bridge without multicast snooping (which would need a querier).
func (w *wiring) bridge(host, name string, hw net.HardwareAddr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.Flags = name, hw, net.FlagUp
	snoop := false
	if err := w.handles[host].LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snoop}); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w", name, host, err)
	}
	return w.learn(host, name)
}

// learn notes the index of an interface.
func (w *wiring) learn(host, name string) error {
	link, err := w.handles[host].LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", name, host, err)
	}
	w.index[host+"/"+name] = link.Attrs().Index
	return nil
}

// veth makes a pair: eth0 in host, far in the namespace of farHost, both up. If
// bridge is not empty, far becomes a port of it.
func (w *wiring) veth(host, farHost, far, bridge string, hw, farHW net.HardwareAddr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.Flags = Uplink, hw, net.FlagUp
	err := w.handles[host].LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: far, PeerHardwareAddr: farHW,
		PeerNamespace: netlink.NsFd(w.lab.ns[farHost]),
	})
	if err != nil {
		return fmt.Errorf("add veth %s in %s: %w", far, farHost, err)
	}
	if err := errors.Join(w.learn(host, Uplink), w.learn(farHost, far)); err != nil {
		return err
	}
	farLink := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: w.index[farHost+"/"+far], Name: far}}
	if bridge != "" {
		if err := w.handles[farHost].LinkSetMasterByIndex(farLink, w.index[farHost+"/"+bridge]); err != nil {
			return fmt.Errorf("make %s a port of %s: %w", far, bridge, err)
		}
		if err := w.handles[farHost].LinkSetHairpin(farLink, bridge == PodBridge); err != nil {
			return fmt.Errorf("set hairpin mode of %s: %w", far, err)
		}
	}
	if err := w.handles[farHost].LinkSetUp(farLink); err != nil {
		return fmt.Errorf("set %s up: %w", far, err)
	}
	return nil
}

// lanHost connects a node, the client or the sink.
func (w *wiring) lanHost(i int, h Host) error {
	if err := w.veth(h.Name, switchHost, h.Name, "br0", mac(1, byte(i), 0), mac(1, byte(i), 1)); err != nil {
		return err
	}
	err := errors.Join(
		w.addr(h.Name, Uplink, netip.PrefixFrom(h.V4, LAN4.Bits())),
		w.addr(h.Name, Uplink, netip.PrefixFrom(h.V6, LAN6.Bits())),
	)
	if err != nil {
		return err
	}
	if h.Node != "" && w.lab.opts.Bridge {
		if err := w.podBridge(i, h); err != nil {
			return err
		}
	}
	return w.lanRoutes(h)
}

// podBridge makes a node's cbr0 with the first address of its pod range.
func (w *wiring) podBridge(i int, node Host) error {
	if err := w.bridge(node.Name, PodBridge, mac(2, byte(i), 0)); err != nil {
		return err
	}
	p4, p6 := podRanges(node.Name)
	return errors.Join(
		w.addr(node.Name, PodBridge, netip.PrefixFrom(p4.Addr().Next(), p4.Bits())),
		w.addr(node.Name, PodBridge, netip.PrefixFrom(p6.Addr().Next(), p6.Bits())),
	)
}

// pod connects a pod to its node.
func (w *wiring) pod(i int, h Host) error {
	far, bridge := "veth"+h.Name, ""
	gatewayMAC := mac(3, byte(i), 1)
	farMAC := gatewayMAC
	if w.lab.opts.Bridge {
		bridge = PodBridge
		link, err := w.handles[h.Node].LinkByName(PodBridge)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", PodBridge, h.Node, err)
		}
		gatewayMAC = link.Attrs().HardwareAddr
	}
	if err := w.veth(h.Name, h.Node, far, bridge, mac(3, byte(i), 0), farMAC); err != nil {
		return err
	}
	for _, f := range []struct {
		addr, gateway netip.Addr
	}{{h.V4, gateway4}, {h.V6, gateway6}} {
		err := errors.Join(
			w.addr(h.Name, Uplink, netip.PrefixFrom(f.addr, f.addr.BitLen())),
			w.neighbour(h.Name, f.gateway, gatewayMAC),
			w.route(h.Name, defaultFor(f.addr), f.gateway),
		)
		if err != nil {
			return err
		}
		if bridge == "" {
			if err := w.podRoute(h, far, f.addr); err != nil {
				return err
			}
		}
	}
	return nil
}

// lanRoutes gives a LAN host its routes, as the package comment tells them.
func (w *wiring) lanRoutes(h Host) error {
	sink, _ := HostByName(Sink)
	for _, six := range []bool{false, true} {
		via := func(name string) netip.Addr { next, _ := HostByName(name); return next.Addr(six) }
		var err error
		switch h.Name {
		case Node1, Node2:
			err = w.route(h.Name, defaultFor(h.Addr(six)), sink.Addr(six))
			if other := map[string]string{Node1: Node2, Node2: Node1}[h.Name]; !w.lab.opts.NoNode2 {
				err = errors.Join(err, w.route(h.Name, podRange(other, six), via(other)))
			}
		case Client:
			err = w.route(h.Name, podRange(Node1, six), via(Node1))
			if !w.lab.opts.NoNode2 {
				err = errors.Join(err, w.route(h.Name, podRange(Node2, six), via(Node2)))
			}
			for _, p := range []netip.Prefix{Service4, Service6, LoadBalancer4, LoadBalancer6, External4, External6} {
				if p.Addr().Is6() == six {
					err = errors.Join(err, w.route(h.Name, p, via(Node1)))
				}
			}
		case Sink:
			// Without a route the kernel would answer IPv6 packets with an error.
			err = w.blackhole(h.Name, defaultFor(h.Addr(six)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func podRange(node string, six bool) netip.Prefix {
	p4, p6 := podRanges(node)
	if six {
		return p6
	}
	return p4
}

// defaultFor is the default route's destination in the address's family.
func defaultFor(a netip.Addr) netip.Prefix {
	if a.Is6() {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (w *wiring) addr(host, iface string, p netip.Prefix) error {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: w.index[host+"/"+iface], Name: iface}}
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := w.handles[host].AddrAdd(link, a); err != nil {
		return fmt.Errorf("add address %s to %s: %w", p, iface, err)
	}
	return nil
}

func (w *wiring) neighbour(host string, ip netip.Addr, hw net.HardwareAddr) error {
	err := w.handles[host].NeighSet(&netlink.Neigh{
		LinkIndex: w.index[host+"/"+Uplink], State: netlink.NUD_PERMANENT,
		IP: ip.AsSlice(), HardwareAddr: hw,
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", ip, err)
	}
	return nil
}

// route leads dst over eth0 to gateway, which need not be in a connected range.
func (w *wiring) route(host string, dst netip.Prefix, gateway netip.Addr) error {
	err := w.handles[host].RouteAdd(&netlink.Route{
		LinkIndex: w.index[host+"/"+Uplink], Dst: ipNet(dst), Gw: gateway.AsSlice(), Flags: unix.RTNH_F_ONLINK,
	})
	if err != nil {
		return fmt.Errorf("add route %s via %s: %w", dst, gateway, err)
	}
	return nil
}

func (w *wiring) blackhole(host string, dst netip.Prefix) error {
	if err := w.handles[host].RouteAdd(&netlink.Route{Dst: ipNet(dst), Type: unix.RTN_BLACKHOLE}); err != nil {
		return fmt.Errorf("add blackhole route %s: %w", dst, err)
	}
	return nil
}

// podRoute leads one pod's address over its own link. The source is named, because
// the link itself has no address to choose.
func (w *wiring) podRoute(pod Host, far string, addr netip.Addr) error {
	node, _ := HostByName(pod.Node)
	err := w.handles[pod.Node].RouteAdd(&netlink.Route{
		LinkIndex: w.index[pod.Node+"/"+far], Scope: unix.RT_SCOPE_LINK,
		Dst: ipNet(netip.PrefixFrom(addr, addr.BitLen())), Src: node.Addr(addr.Is6()).AsSlice(),
	})
	if err != nil {
		return fmt.Errorf("add route to %s over %s: %w", addr, far, err)
	}
	return nil
}

// waitReady waits until every link is operational. The kernel tells the bridges
// and IPv6 of a new carrier a moment after the links are up; a packet sent before
// is lost, and TCP would repeat it only a second later.
func (w *wiring) waitReady() error {
	deadline := time.Now().Add(10 * time.Second)
	for host, h := range w.handles {
		for {
			waiting, err := notReady(h)
			if err != nil {
				return fmt.Errorf("list links and addresses of %s: %w", host, err)
			}
			if waiting == "" {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("host %s: %s is not operational after 10 s", host, waiting)
			}
			time.Sleep(500 * time.Microsecond)
		}
	}
	return nil
}

// notReady names a link that is not operational or an address that is tentative,
// "" if there is none.
func notReady(h *netlink.Handle) (string, error) {
	links, err := h.LinkList()
	if err != nil {
		return "", err
	}
	for _, l := range links {
		if kind := l.Type(); (kind == "veth" || kind == "bridge") && l.Attrs().OperState != netlink.OperUp {
			return "link " + l.Attrs().Name, nil
		}
	}
	addrs, err := h.AddrList(nil, unix.AF_INET6)
	if err != nil {
		return "", err
	}
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return "address " + a.IPNet.String(), nil
		}
	}
	return "", nil
}
