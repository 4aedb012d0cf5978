package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// Find returns the address, port and protocol of the target in a table. An omitted one is that of
// the Service, if it has only one. A Service has its namespace; node is an address of this node at
// which NodePorts answer, not valid without one. An error says what to write instead.
//
// Its cost follows the frontends of the Service; for an address without a port, all frontends.
func (t Target) Find(table *lb.Table, node netip.Addr) (netip.AddrPort, lb.Proto, error) {
	switch {
	case t.NodePort:
		return t.findNodePort(table, node)
	case t.Service != "":
		return t.findService(table)
	case t.Proto == ICMPv4:
		return netip.AddrPortFrom(t.Addr, 0), ping(t.Addr), nil
	case t.Port != 0:
		return netip.AddrPortFrom(t.Addr, t.Port), t.proto(table, t.Addr), nil
	}
	var rows []*lb.Frontend
	for row := range table.All() {
		if row.Key.Addr == t.Addr && (t.Proto == 0 || t.Proto == row.Key.Proto) {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return netip.AddrPort{}, 0, fmt.Errorf("no Service has the address %s: say which port (%s)", t.Addr,
			netip.AddrPortFrom(t.Addr, 80))
	}
	return only(rows, t.Addr.String())
}

func ping(a netip.Addr) lb.Proto {
	if a.Is4() {
		return ICMPv4
	}
	return ICMPv6
}

// proto is the given protocol, else the first with a frontend, else TCP.
func (t Target) proto(table *lb.Table, a netip.Addr) lb.Proto {
	if t.Proto != 0 {
		return t.Proto
	}
	for _, p := range []lb.Proto{lb.TCP, lb.UDP, lb.SCTP} {
		if table.Get(lb.Key{Addr: a, Port: t.Port, Proto: p}) != nil {
			return p
		}
	}
	return lb.TCP
}

func (t Target) findNodePort(table *lb.Table, node netip.Addr) (netip.AddrPort, lb.Proto, error) {
	if !node.IsValid() {
		return netip.AddrPort{}, 0, fmt.Errorf("nodeport:%d: no address of this node is known at which NodePorts "+
			"answer: write ADDRESS:PORT", t.Port)
	}
	return netip.AddrPortFrom(node, t.Port), t.proto(table, netip.Addr{}), nil
}

// findService chooses one of the frontends of a Service.
func (t Target) findService(table *lb.Table) (netip.AddrPort, lb.Proto, error) {
	name := t.Service
	var all, rows []*lb.Frontend
	for _, row := range table.Owned(name) {
		if row.Kind != lb.ClusterIP {
			continue // the same ports at other addresses
		}
		all = append(all, row)
		_, port, _ := strings.Cut(row.Service, ":")
		if (t.Port == 0 || t.Port == row.Key.Port) && (t.PortName == "" || t.PortName == port) &&
			(t.Proto == 0 || t.Proto == row.Key.Proto) {
			rows = append(rows, row)
		}
	}
	switch {
	case len(all) == 0:
		return netip.AddrPort{}, 0, fmt.Errorf("the Service %s has no port at an address that this node serves in "+
			"this family: run kube-proxy why %[1]s", name)
	case t.Proto == ICMPv4:
		a := all[0].Key.Addr
		return netip.AddrPortFrom(a, 0), ping(a), nil
	case t.Port != 0 && len(rows) > 0: // the same number in several protocols: TCP first
		first := slices.MinFunc(rows, func(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) })
		return netip.AddrPortFrom(first.Key.Addr, t.Port), first.Key.Proto, nil
	case t.Port != 0: // of no Service: a valid query too
		return netip.AddrPortFrom(all[0].Key.Addr, t.Port), t.proto(table, all[0].Key.Addr), nil
	case len(rows) == 0:
		return netip.AddrPort{}, 0, fmt.Errorf("the Service %s has no such port: it has %s", name, ports(all))
	}
	return only(rows, "the Service "+name)
}

// only returns the frontend's key if there is only one.
func only(rows []*lb.Frontend, of string) (netip.AddrPort, lb.Proto, error) {
	if len(rows) > 1 {
		return netip.AddrPort{}, 0, fmt.Errorf("%s has %s: say which port", of, ports(rows))
	}
	k := rows[0].Key
	return netip.AddrPortFrom(k.Addr, k.Port), k.Proto, nil
}

// ports lists the ports of frontends in an error.
func ports(rows []*lb.Frontend) string {
	sorted := slices.SortedFunc(slices.Values(rows), func(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) })
	var words []string
	for i, row := range sorted {
		if i == most {
			words = append(words, plural.Count(len(rows)-most, "other", "others"))
			break
		}
		word := fmt.Sprintf("%d/%s", row.Key.Port, row.Key.Proto)
		if _, port, named := strings.Cut(row.Service, ":"); named {
			word = port + " (" + word + ")"
		}
		words = append(words, word)
	}
	return "the ports " + strings.Join(words, ", ")
}
