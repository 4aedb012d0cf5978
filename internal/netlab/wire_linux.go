package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// hostSysctls are set in every host; nodeSysctls also in nodes. The "default" entries apply to
// later interfaces, so they must be written before any exists.
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
	{"ipv6/icmp/ratemask", "3"}, // time exceeded only: no test waits for it
	{"bridge/bridge-nf-call-iptables", "0"},
	{"bridge/bridge-nf-call-ip6tables", "0"},
	{"bridge/bridge-nf-call-arptables", "0"},
}

// setSysctls configures the thread's namespace for the host.
func setSysctls(name string) error {
	rows := hostSysctls
	if name == Node1 || name == Node2 {
		// First the nodes' entries: enabling forwarding resets other settings.
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

// wiring is the state of one run of wire: a socket in each host.
type wiring struct {
	lab   *Lab
	rtnl  map[string]*rtnl
	index map[string]int // "host/interface" → ifindex there
}

// wire makes links, addresses, neighbours and routes.
func (l *Lab) wire() error {
	w := &wiring{lab: l, rtnl: map[string]*rtnl{}, index: map[string]int{}}
	defer func() {
		for _, r := range w.rtnl {
			r.close()
		}
	}()
	for name, ns := range l.ns {
		r, err := openRTNL(ns)
		if err != nil {
			return fmt.Errorf("wire %s: %w", name, err)
		}
		w.rtnl[name] = r
		if err := r.up(1); err != nil {
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
	return nil
}

// mac makes a locally administered address, unique within a lab.
func mac(kind, n, side byte) net.HardwareAddr { return net.HardwareAddr{0x02, 'k', 'p', kind, n, side} }

// bridge makes a bridge.
func (w *wiring) bridge(host, name string, hw net.HardwareAddr) error {
	if err := w.rtnl[host].addBridge(name, hw); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w", name, host, err)
	}
	return w.learn(host, name)
}

// learn records the index of an interface.
func (w *wiring) learn(host, name string) error {
	l, err := w.rtnl[host].find(name)
	if err != nil {
		return fmt.Errorf("in %s: %w", host, err)
	}
	w.index[host+"/"+name] = l.index
	return nil
}

// veth makes a pair: eth0 in host, far in the namespace of farHost, both up. If
// bridge is not empty, far becomes a port of it.
func (w *wiring) veth(host, farHost, far, bridge string, hw, farHW net.HardwareAddr) error {
	if err := w.rtnl[host].addVeth(Uplink, hw, far, farHW, w.lab.ns[farHost]); err != nil {
		return fmt.Errorf("add veth %s in %s: %w", far, farHost, err)
	}
	if err := errors.Join(w.learn(host, Uplink), w.learn(farHost, far)); err != nil {
		return err
	}
	index := w.index[farHost+"/"+far]
	if bridge != "" {
		if err := w.rtnl[farHost].enslave(index, w.index[farHost+"/"+bridge], bridge == PodBridge); err != nil {
			return fmt.Errorf("connect %s with %s: %w", far, bridge, err)
		}
	}
	if err := w.rtnl[farHost].up(index); err != nil {
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
	if err := w.lanNeighbours(h); err != nil {
		return err
	}
	return w.lanRoutes(h)
}

// lanNeighbours gives a LAN host the others' MAC addresses, so that no packet waits for ARP or ND,
// whose repetitions take a second.
func (w *wiring) lanNeighbours(h Host) error {
	for i, other := range w.lab.hosts {
		if other.Pod() || other.Name == h.Name {
			continue
		}
		for _, ip := range []netip.Addr{other.V4, other.V6} {
			if err := w.neighbour(h.Name, Uplink, ip, mac(1, byte(i), 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// podBridge makes a node's cbr0 with the first address of its pod range.
func (w *wiring) podBridge(i int, node Host) error {
	if err := w.bridge(node.Name, PodBridge, mac(2, byte(i), 0)); err != nil {
		return err
	}
	p4, p6 := podRange(node.Name, false), podRange(node.Name, true)
	return errors.Join(
		w.addr(node.Name, PodBridge, netip.PrefixFrom(p4.Addr().Next(), p4.Bits())),
		w.addr(node.Name, PodBridge, netip.PrefixFrom(p6.Addr().Next(), p6.Bits())),
	)
}

// pod connects a pod to its node.
func (w *wiring) pod(i int, h Host) error {
	far, bridge := "veth"+h.Name, ""
	podLink := far // where the node's IP stack meets the pod
	gatewayMAC := mac(3, byte(i), 1)
	farMAC := gatewayMAC
	if w.lab.opts.Bridge {
		bridge, podLink = PodBridge, PodBridge
		l, err := w.rtnl[h.Node].find(PodBridge)
		if err != nil {
			return fmt.Errorf("in %s: %w", h.Node, err)
		}
		gatewayMAC = l.hw
	}
	podMAC := mac(3, byte(i), 0)
	if err := w.veth(h.Name, h.Node, far, bridge, podMAC, farMAC); err != nil {
		return err
	}
	for _, f := range []struct {
		addr, gateway netip.Addr
	}{{h.V4, gateway4}, {h.V6, gateway6}} {
		err := errors.Join(
			w.addr(h.Name, Uplink, netip.PrefixFrom(f.addr, f.addr.BitLen())),
			w.neighbour(h.Name, Uplink, f.gateway, gatewayMAC),
			w.neighbour(h.Node, podLink, f.addr, podMAC),
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

// lanRoutes gives a LAN host its routes, as the package comment shows them.
func (w *wiring) lanRoutes(h Host) error {
	for _, six := range []bool{false, true} {
		var err error
		switch h.Name {
		case Node1, Node2:
			err = w.route(h.Name, defaultFor(h.Addr(six)), Addr(Sink, six))
			if other := map[string]string{Node1: Node2, Node2: Node1}[h.Name]; !w.lab.opts.NoNode2 {
				err = errors.Join(err, w.route(h.Name, podRange(other, six), Addr(other, six)))
			}
		case Client:
			err = w.route(h.Name, podRange(Node1, six), Addr(Node1, six))
			if !w.lab.opts.NoNode2 {
				err = errors.Join(err, w.route(h.Name, podRange(Node2, six), Addr(Node2, six)))
			}
			for _, p := range []netip.Prefix{Service4, Service6, LoadBalancer4, LoadBalancer6, External4, External6} {
				if p.Addr().Is6() == six {
					err = errors.Join(err, w.route(h.Name, p, Addr(Node1, six)))
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

// defaultFor is the default route's destination in the address's family.
func defaultFor(a netip.Addr) netip.Prefix { return netip.PrefixFrom(unspecified(a.Is6()), 0) }

func (w *wiring) addr(host, iface string, p netip.Prefix) error {
	if err := w.rtnl[host].addAddr(w.index[host+"/"+iface], p); err != nil {
		return fmt.Errorf("add address %s to %s: %w", p, iface, err)
	}
	return nil
}

func (w *wiring) neighbour(host, iface string, ip netip.Addr, hw net.HardwareAddr) error {
	if err := w.rtnl[host].setNeighbour(w.index[host+"/"+iface], ip, hw); err != nil {
		return fmt.Errorf("set neighbour %s: %w", ip, err)
	}
	return nil
}

// route adds a route to dst over eth0 by gateway, which need not be in a connected range.
func (w *wiring) route(host string, dst netip.Prefix, gateway netip.Addr) error {
	err := w.rtnl[host].addRoute(route{dst: dst, gateway: gateway, index: w.index[host+"/"+Uplink], onlink: true})
	if err != nil {
		return fmt.Errorf("add route %s via %s: %w", dst, gateway, err)
	}
	return nil
}

func (w *wiring) blackhole(host string, dst netip.Prefix) error {
	if err := w.rtnl[host].addRoute(route{dst: dst, kind: unix.RTN_BLACKHOLE}); err != nil {
		return fmt.Errorf("add blackhole route %s: %w", dst, err)
	}
	return nil
}

// podRoute routes one pod's address over its own link. It names the source, because the link itself
// has no address.
func (w *wiring) podRoute(pod Host, far string, addr netip.Addr) error {
	err := w.rtnl[pod.Node].addRoute(route{dst: netip.PrefixFrom(addr, addr.BitLen()), scope: unix.RT_SCOPE_LINK,
		index: w.index[pod.Node+"/"+far], source: Addr(pod.Node, addr.Is6())})
	if err != nil {
		return fmt.Errorf("add route to %s over %s: %w", addr, far, err)
	}
	return nil
}

// waitReady waits until every host's link carries packets of both families. The
// kernel notifies bridges and IPv6 of a new carrier only a moment after the links are
// up; a packet sent before is lost, and TCP would repeat it a second later.
func (l *Lab) waitReady() error {
	for _, h := range l.hosts {
		next := Sink
		if h.Pod() {
			next = h.Node
		} else if h.Name == Sink {
			continue
		}
		for _, six := range []bool{false, true} {
			if err := l.waitEcho(h.Name, Addr(next, six)); err != nil {
				return fmt.Errorf("the new link of %s does not carry: %w", h.Name, err)
			}
		}
	}
	return nil
}

// waitEcho pings with growing timeouts until an answer arrives.
func (l *Lab) waitEcho(host string, to netip.Addr) error {
	var err error
	for timeout := 5 * time.Millisecond; timeout < 10*time.Second; timeout *= 2 {
		err = l.Ping(host, to, timeout)
		if err == nil || !isAnswer(err) {
			return err
		}
	}
	return err
}

// isAnswer reports whether an error comes from the network, so that another try may help.
func isAnswer(err error) bool {
	return errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrRefused)
}
