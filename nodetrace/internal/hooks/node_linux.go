package hooks

import (
	"context"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/nodetrace/internal/nft"
)

// node answers what rules ask about addresses and devices.
type node struct {
	ctx    context.Context
	conn   *nlconn.Conn
	byName map[string]route.Link
	names  map[int32]string
	routes map[netip.Addr]route.Route
	// addresses of the node; nil until they are read.
	addresses []route.Address
}

func inspectAround(ctx context.Context) (*node, error) {
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return nil, err
	}
	n := &node{ctx: ctx, conn: conn, byName: map[string]route.Link{}, names: map[int32]string{},
		routes: map[netip.Addr]route.Route{}}
	links, err := route.Links(ctx, conn)
	for _, l := range links {
		n.byName[l.Name], n.names[l.Index] = l, l.Name
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return n, nil
}

// link is a device as rules see it.
func (n *node) link(name string) nft.Link {
	l := n.byName[name]
	return nft.Link{Name: name, Index: uint32(l.Index), Type: l.Type}
}

// LinkName returns the name of a device; "" if no device has the number.
func (n *node) LinkName(index uint32) string { return n.names[int32(index)] }

// bridge reports whether a device is a bridge.
func (n *node) bridge(name string) bool { return n.byName[name].Kind == "bridge" }

// ports returns the names of a bridge's ports.
func (n *node) ports(bridge string) (all []string) {
	for name, l := range n.byName {
		if l.Master == n.byName[bridge].Index {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

func (n *node) route(a netip.Addr) (route.Route, error) {
	way, known := n.routes[a]
	if known {
		return way, nil
	}
	way, err := route.Lookup(n.ctx, n.conn, route.Query{To: a})
	if err == nil {
		n.routes[a] = way
	}
	return way, err
}

// AddressType is part of nft.Node and xt.Node.
func (n *node) AddressType(a netip.Addr) (uint32, error) {
	if a.IsMulticast() {
		return unix.RTN_MULTICAST, nil
	}
	if a.Is4() && (a.IsUnspecified() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})) {
		return unix.RTN_BROADCAST, nil
	}
	way, err := n.route(a)
	switch way.Type {
	case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST:
		return uint32(way.Type), err
	case 0:
		if a.Is6() {
			return unix.RTN_UNREACHABLE, err
		}
	}
	return unix.RTN_UNICAST, err
}

// LinkTo is part of nft.Node and xt.Node.
func (n *node) LinkTo(a netip.Addr) (index uint32, name string, err error) {
	way, err := n.route(a)
	if err != nil || way.Type != unix.RTN_UNICAST {
		return 0, "", err
	}
	return uint32(way.Out), n.names[way.Out], nil
}

// LinkOf is part of xt.Node.
func (n *node) LinkOf(a netip.Addr) (name string, err error) {
	if n.addresses == nil {
		n.addresses, err = route.Addresses(n.ctx, n.conn, 0)
	}
	for _, is := range n.addresses {
		if is.Addr == a || a.Is4() && a.IsLoopback() && is.Addr.Is4() && is.Addr.IsLoopback() {
			return n.names[is.Index], err
		}
	}
	return "", err
}
