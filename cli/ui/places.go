package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"kube-proxy/debug/inspect"
)

// placed is an endpoint with its position in the picture.
type placed struct {
	inspect.Endpoint
	at box
}

// hosts are the endpoints of a node, in the order of ports and addresses.
type hosts struct {
	node string // "" if the API names none
	here bool   // the proxy's own node
	ends []placed
}

// zone is the endpoints of one zone, node by node, this node first.
type zone struct {
	name string // "" if the API names none
	here bool   // the proxy's own zone
	mine bool   // it has endpoints on this node
	host []hosts
	tally
}

// tally counts endpoints.
type tally struct {
	all, in int            // in: with new connections
	why     map[string]int // reasons of the others
}

// add counts an endpoint.
func (t *tally) add(e *inspect.Endpoint) {
	if t.all++; len(balancing(e)) > 0 {
		t.in++
		return
	}
	if t.why == nil {
		t.why = map[string]int{}
	}
	t.why[endSays(e)]++
}

// reasons returns the most frequent reasons against connections, with counts: "3 not ready".
func (t *tally) reasons(most int) (out []string) {
	order := slices.SortedFunc(maps.Keys(t.why), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.why[b], t.why[a]), cmp.Compare(a, b))
	})
	for _, why := range order[:min(len(order), most)] {
		out = append(out, count(t.why[why])+" "+visible(why))
	}
	return out
}

// says returns a count in words.
func (t *tally) says() string { return fmt.Sprintf("%s of %s in use", count(t.in), count(t.all)) }

// zonesOf groups a Service's endpoints by zone and node: this node's first, then by name, unnamed
// ones last.
func zonesOf(d *inspect.Detail) []zone {
	type key struct{ zone, node string }
	zones, nodes := map[string]*zone{}, map[key]*hosts{}
	for _, f := range d.Families {
		for _, e := range f.Endpoints {
			z, h := zones[e.Zone], nodes[key{e.Zone, e.Node}]
			if z == nil {
				z = &zone{name: e.Zone}
				zones[e.Zone] = z
			}
			if h == nil {
				h = &hosts{node: e.Node}
				nodes[key{e.Zone, e.Node}] = h
			}
			z.here, z.mine, h.here = z.here || e.SameZone, z.mine || e.Local, h.here || e.Local
			z.add(&e)
			h.ends = append(h.ends, placed{Endpoint: e})
		}
	}
	for k, h := range nodes {
		slices.SortFunc(h.ends, func(a, b placed) int {
			return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Protocol, b.Protocol),
				a.Address.Compare(b.Address))
		})
		zones[k.zone].host = append(zones[k.zone].host, *h)
	}
	out := make([]zone, 0, len(zones))
	for _, z := range zones {
		slices.SortFunc(z.host, func(a, b hosts) int {
			return cmp.Or(btoi(b.here)-btoi(a.here), byName(a.node, b.node))
		})
		out = append(out, *z)
	}
	slices.SortFunc(out, func(a, b zone) int {
		return cmp.Or(btoi(b.here)-btoi(a.here), btoi(b.mine)-btoi(a.mine), byName(a.name, b.name))
	})
	return out
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// byName orders names, the empty one last.
func byName(a, b string) int { return cmp.Or(btoi(a == "")-btoi(b == ""), cmp.Compare(a, b)) }

// named reports whether any endpoint has a known zone. If not, the page does not mention zones.
func named(zones []zone) bool {
	return slices.ContainsFunc(zones, func(z zone) bool { return z.name != "" })
}

// turns returns the number of drawn endpoints of each zone: zones take turns.
func turns(zones []zone, room int) []int {
	out := make([]int, len(zones))
	for took := true; took && room > 0; {
		took = false
		for k := range zones {
			if out[k] < zones[k].all && room > 0 {
				out[k]++
				room--
				took = true
			}
		}
	}
	return out
}

// zoneText is the heading of a zone.
func zoneText(z *zone) string {
	switch {
	case z.name == "":
		return "zone not named: " + z.says()
	case z.here:
		return short(z.name, 20) + " (here): " + z.says()
	}
	return short(z.name, 26) + ": " + z.says()
}

// nodeText is the heading of a node's endpoints.
func nodeText(h *hosts) string {
	switch {
	case h.node == "":
		return "node not named"
	case h.here:
		return short(h.node, 30) + " (this node)"
	}
	return short(h.node, 40)
}
