package netlab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ServiceRanges are those of the addresses that a proxy translates, of both families.
func ServiceRanges() []netip.Prefix {
	return []netip.Prefix{Service4, LoadBalancer4, External4, Service6, LoadBalancer6, External6}
}

// BaitSink makes the sink take all addresses of ServiceRanges for its own, and gives it ways back to the pods. With
// responders there (Lab.Listen), a packet that a node lets pass untouched is answered by the sink, and silence means
// that the node dropped it.
func (l *Lab) BaitSink() error {
	ns, err := l.Namespace(Sink)
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlab: open netlink in the sink: %w", err)
	}
	defer h.Close()
	if err := takeServiceRanges(h); err != nil {
		return err
	}
	uplink, err := h.LinkByName(Uplink)
	if err != nil {
		return fmt.Errorf("netlab: find %s of the sink: %w", Uplink, err)
	}
	for _, name := range []string{Node1, Node2} {
		node, _ := HostByName(name)
		pods4, pods6 := podRanges(name)
		for _, pods := range []netip.Prefix{pods4, pods6} {
			route := &netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: ipNet(pods), Gw: node.Addr(pods.Addr().Is6()).AsSlice()}
			if err := h.RouteReplace(route); err != nil {
				return fmt.Errorf("netlab: give the sink a route to %s: %w", pods, err)
			}
		}
	}
	return nil
}

func takeServiceRanges(h *netlink.Handle) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("netlab: find lo of the sink: %w", err)
	}
	for _, p := range ServiceRanges() {
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(p), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
			Scope: netlink.SCOPE_HOST}
		if err := h.RouteReplace(route); err != nil {
			return fmt.Errorf("netlab: let the sink take %s: %w", p, err)
		}
	}
	return nil
}
