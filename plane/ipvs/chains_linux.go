package ipvs

import (
	"kube-proxy/lb"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/ownwrites"
)

// chainLayout says which chains are kept, whatever the rows are: no tree is among them. What the modes iptables and ipvs of whatever
// kube-proxy left is taken over, and removed where it is not needed.
func chainLayout(f lb.Family, backend iptables.Backend, writes *ownwrites.Ledger) iptables.Layout {
	l := iptables.Layout{Family: f, Ours: iptables.Leftover, Writes: writes, Backend: backend}
	for _, j := range chainJumps() {
		l.Jumps = append(l.Jumps, iptables.ChainRule{Table: j[0], Chain: j[1], Rule: j[2]})
	}
	return l
}
