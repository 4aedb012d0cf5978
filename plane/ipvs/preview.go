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
	sets      []previewSet
	addresses []netip.Addr // on kube-ipvs0
}

type previewSet struct {
	ipset.Set
	members []ipset.Member
}

// previewOf returns the preview of a table on a node that has those addresses, beside service
// addresses.
func previewOf(l layout, own []netip.Addr, table *lb.Table) preview {
	led := newLedger(l)
	led.own = own
	led.know(table.Node)
	led.conflict(table)
	for _, a := range own {
		led.elsewhere[a] = true
		if lb.Within(table.Node.NodePorts, a) {
			led.nodePorts = append(led.nodePorts, a)
		}
	}
	for _, row := range table.Sorted() {
		_ = led.set(row.Key, row) // a refused frontend has no ranges, and drops
	}
	var p preview
	for _, s := range led.sortedServers() {
		for _, op := range led.raise(nil, s) {
			p.ops = append(p.ops, op.Op)
		}
	}
	members := slices.SortedFunc(maps.Keys(led.members), compareMembers)
	for s := range setCount {
		made := previewSet{Set: s.made(l.family)}
		for _, m := range members {
			if m.set == s {
				made.members = append(made.members, m.wire(led.members[m].want))
			}
		}
		p.sets = append(p.sets, made)
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
