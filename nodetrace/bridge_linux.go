package nodetrace

import (
	"fmt"
	"net/netip"
	"slices"

	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/trace"
)

// behind returns the port of a bridge behind which an address is, as its neighbour entry and the
// bridge's own table have it; ok is false if they do not.
func (w *walk) behind(bridge rtnl.Link, a netip.Addr) (p rtnl.Port, ok bool) {
	for _, n := range w.neighbours {
		if n.Link != bridge.Index || n.Addr != a || n.MAC == [6]byte{} {
			continue
		}
		at, known := w.stations[n.MAC]
		i := slices.IndexFunc(w.ports, func(p rtnl.Port) bool { return p.Link == at })
		if known && i >= 0 && w.link(at).Master == bridge.Index {
			return w.ports[i], true
		}
	}
	return p, false
}

// atPort is the stage at which a port of a bridge stops packets, whether they pass the node's IP
// stack or go from port to port.
const atPort = "bridge"

// bridged reports a port of a bridge that does not take the packet. A bridge forgets what was
// behind a port that went down.
func (w *walk) bridged(y *way, bridge rtnl.Link, next netip.Addr) stop {
	p, known := w.behind(bridge, next)
	if bridge.VLANs {
		y.doubtful("bridge %s filters by VLAN: see bridge vlan show", bridge.Name)
	}
	switch {
	case bridge.Kind != "bridge":
		return stop{}
	case !known:
		for _, p := range w.ports {
			if port := w.link(p.Link); port.Master == bridge.Index && (!p.Forwards || down(port).by != "") {
				y.doubtful("port %s of bridge %s is down, and %s may be behind it", port.Name, bridge.Name, next)
			}
		}
		for _, l := range w.links {
			if l.Kind == "veth" && l.Master != bridge.Index && len(w.addressesOf(l)) == 0 {
				y.doubtful("%s is not a port of bridge %s, which has no entry for %s: it may be behind that", l.Name,
					bridge.Name, next)
			}
		}
		return stop{}
	}
	port := w.link(p.Link)
	s := down(port)
	if s.by != "" {
		s.stage = atPort
	} else if !p.Forwards {
		s = stop{verdict: trace.Dropped, stage: atPort, do: "bridge link show dev " + port.Name,
			by: fmt.Sprintf("port %s of bridge %s is not in state forwarding", port.Name, bridge.Name)}
	}
	from, same := w.behind(bridge, y.asked.From.Addr())
	// The bridge itself translates the frame, and sends it out of a port.
	if among := len(w.in) > 0 && w.in[0] == bridge.Index && !w.own() && y.backend.IsValid() && !y.later &&
		w.number("bridge/"+w.bridgeCalls(next)) != 0; s.by == "" && among && same && !y.reply {
		switch {
		case from.Link == p.Link && !p.Hairpin:
			s = stop{verdict: trace.Dropped, stage: atPort, do: "bridge link set dev " + port.Name + " hairpin on",
				by: fmt.Sprintf("port %s of bridge %s does not send frames back (hairpin off)", port.Name, bridge.Name)}
		case from.Link != p.Link && from.Isolated && p.Isolated:
			s = stop{verdict: trace.Dropped, stage: atPort, do: "bridge link set dev " + port.Name + " isolated off",
				by: fmt.Sprintf("ports %s and %s of bridge %s are isolated", w.link(from.Link).Name,
					port.Name, bridge.Name)}
		}
	}
	return s
}
