package policy

import (
	"net/netip"
	"slices"

	"kube-proxy/cluster"
)

// avoidance is why new connections do not go to a candidate (FO-06).
type avoidance uint8

const (
	reached avoidance = iota
	noAnswer
	nodeDown
)

// String returns the reason in a few words.
func (a avoidance) String() string {
	if a == nodeDown {
		return "avoided: its node is unreachable from here"
	}
	return "avoided: unreachable from here"
}

// avoidanceOf returns the verdict of this node's probes on an entry of a slice.
func (r *resolver) avoidanceOf(e *cluster.Endpoint, port uint16, proto cluster.Protocol) avoidance {
	u := &r.view.Node.Unreachable
	is, byNode := u.Has(netip.AddrPortFrom(e.Addr, port), proto, e.Place().Node)
	switch {
	case !is || e.OnNode(r.view.Node.NodeName) && byNode: // this node reaches itself
		return reached
	case byNode:
		return nodeDown
	}
	return noAnswer
}

// fingerprint appends the unreachable entries of these slices to key, so that only ports with the
// same ones share a group.
func (r *resolver) fingerprint(key []byte, of []servedPort, proto cluster.Protocol) []byte {
	if r.view.Node.Unreachable.IsZero() {
		return key
	}
	for _, s := range of {
		for i := range r.view.Slices[s.slice].Endpoints.Len() {
			e := r.view.Slices[s.slice].Endpoints.At(i)
			if why := r.avoidanceOf(&e, s.port, proto); why != reached {
				a := e.Addr.As16()
				key = append(append(key, a[:]...), byte(why))
			}
		}
	}
	return key
}

// keepHalf has new connections go to more unreachable candidates, the first ones by address, until
// at most half of the ready candidates are avoided, except for those on unreachable nodes (FO-07):
// a firewall that drops only the probes may also silence many endpoints.
func keepHalf(all []candidate) {
	ready, left := 0, 0
	for i := range all {
		if all[i].ready {
			ready++
		}
		if all[i].ready && all[i].avoided == nodeDown {
			left++
		}
	}
	for i := range slices.Backward(all) {
		switch c := &all[i]; {
		case c.avoided != noAnswer:
		case c.ready && left+1 <= ready/2:
			left++
		case c.ready:
			c.avoided = reached
		}
	}
}

// avoidsAll reports whether an entry is unreachable at all ports of its slice that are served.
func (r *resolver) avoidsAll(e *cluster.Endpoint, sl *cluster.Slice) bool {
	return !r.view.Node.Unreachable.IsZero() && !slices.ContainsFunc(sl.Ports, func(p cluster.SlicePort) bool {
		return r.isServed(p) && r.avoidanceOf(e, p.Port, p.Protocol) == reached
	})
}
