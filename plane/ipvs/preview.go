//go:build linux

package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
)

// preview is what a new plane would write to an empty kernel, in a fixed order.
type preview struct {
	ops       []ipvs.Op // that create the virtual and real servers
	sets      [setCount]previewSet
	addresses []netip.Addr // on kube-ipvs0
}

type previewSet struct {
	ipset.Set
	members []ipset.Member
}

// previewOf returns the preview of a table on a node that has those addresses, beside service
// addresses.
func previewOf(l layout, own []netip.Addr, table *lb.Table) preview {
	node := Place{Own: own, Elsewhere: map[netip.Addr]bool{}}
	for _, a := range own {
		node.Elsewhere[a] = true
	}
	led := newLedger(l)
	led.place(node, table.Node)
	led.conflict(table)
	for _, row := range table.Sorted() {
		_ = led.set(row.Key, row) // a refused frontend has no ranges, and drops
	}
	var p preview
	for _, s := range led.sortedServers() {
		for _, op := range led.raise(nil, s) {
			p.ops = append(p.ops, op.Op)
		}
	}
	for s := range setCount {
		p.sets[s].Set = s.made(l.family)
	}
	for _, m := range slices.SortedFunc(maps.Keys(led.members), compareMembers) {
		of := &p.sets[m.set]
		of.members = append(of.members, m.wire(led.members[m].want))
	}
	for a, is := range led.addrs {
		if led.binds(a, is) {
			p.addresses = append(p.addresses, a)
		}
	}
	slices.SortFunc(p.addresses, netip.Addr.Compare)
	return p
}

// saveServers returns the output of ipvsadm-save -n for the operations.
func saveServers(ops []ipvs.Op) string {
	var b strings.Builder
	for _, op := range ops {
		if op.Verb == ipvs.NewDestination {
			b.WriteString(ipvs.SaveDestination(op.Service.ServiceID, op.Destination))
		} else {
			b.WriteString(ipvs.SaveService(op.Service))
		}
	}
	return b.String()
}
