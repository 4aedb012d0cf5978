package planetest

import (
	"net/netip"
	"slices"

	"kube-proxy/lb"
	"kube-proxy/trace"
)

// Packets returns packets from everywhere to each frontend of a table, and to other addresses.
// holds: the node has the addresses of Services, so that its own packets to them have them as their
// source too.
func (w World) Packets(table *lb.Table, holds bool) (all []trace.Packet) {
	node := w.Addr(192, 1)
	sources := []trace.Packet{
		{From: netip.AddrPortFrom(w.Addr(100, 1<<20), 0), In: "veth1"},
		{From: netip.AddrPortFrom(node, 0), Host: true},
		{From: netip.AddrPortFrom(w.Addr(172, 9), 0), In: "eth0"},
		{From: netip.AddrPortFrom(w.Addr(100, 0), 0), In: "veth2"}, // often a backend
	}
	for _, f := range slices.SortedFunc(table.All(), func(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) }) {
		for _, p := range sources {
			p.Proto = f.Key.Proto
			to := f.Key.Addr
			if f.Key.IsNodePort() {
				to, p.Here = node, true
			}
			if holds && p.Host {
				p.From = netip.AddrPortFrom(to, 0)
			}
			for _, port := range []uint16{f.Key.Port, f.Key.Port + 7000} {
				p.To = netip.AddrPortFrom(to, port)
				all = append(all, p)
			}
			for _, s := range f.Sources[:min(1, len(f.Sources))] {
				p.To = netip.AddrPortFrom(to, f.Key.Port)
				if !holds || !p.Host {
					p.From = netip.AddrPortFrom(s.Addr(), 0)
				}
				all = append(all, p)
			}
		}
	}
	return all
}
