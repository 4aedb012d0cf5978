package preflight

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

func networkKinds() []Kind {
	return []Kind{
		{ID: "mtu", Worst: Warning, judge: (*judge).mtu, needs: linksAndRoutes,
			Looks: "the MTU of the pods' interfaces against that of the uplink",
			Why: "Packets larger than the uplink's MTU are fragmented, or dropped if that is forbidden: " +
				"connections open, and then hang on large transfers.",
			Remedy: "Set the MTU of the network plugin to that of the uplink minus the tunnel overhead (50 for " +
				"VXLAN, 20 for IPIP, 60 to 80 for WireGuard)."},
		{ID: "address-conflict", Everywhere: true, Worst: Error, judge: (*judge).conflicts,
			Looks: "whether the networks of pods and Services overlap each other, or an address or route of this node",
			Why: "Packets to a Service may go to the overlapping network, and hosts there whose addresses are " +
				"cluster IPs cannot be reached.",
			Remedy: "Give the cluster unused networks: --service-cluster-ip-range of the API server, --cluster-cidr " +
				"of the controller manager and of the proxy."},
		{ID: "node-ports", Worst: Warning, judge: (*judge).nodePorts, needs: sockets,
			Looks: "programs that listen in the range of NodePorts, 30000 to 32767",
			Why:   "If a Service gets the port, clients reach the Service instead of the program.",
			Remedy: "Move the program to another port, or exclude the port from the API server's range " +
				"(--service-node-port-range)."},
		{ID: "local-ports", Worst: Warning, judge: (*judge).localPorts, needs: sysctls,
			Looks: "whether the ports of outgoing connections (net.ipv4.ip_local_port_range) overlap the range of " +
				"NodePorts",
			Why: "An outgoing connection of the node may use the port of a NodePort: mode userspace cannot listen " +
				"on it, and replies to that connection may be taken for requests.",
			Remedy: "Set net.ipv4.ip_local_reserved_ports to 30000-32767, or the range to 32768 60999."},
	}
}

func isIPv4(p netip.Prefix) bool { return p.Addr().Is4() }

// uplink returns the interface of the default route, in either family.
func (j *judge) uplink() (Link, bool) {
	for _, r := range j.facts.Routes.Value {
		if r.Dst.Bits() != 0 {
			continue
		}
		if i := slices.IndexFunc(j.facts.Links.Value, func(l Link) bool { return l.Index == r.Link }); i >= 0 {
			return j.facts.Links.Value[i], true
		}
	}
	return Link{}, false
}

// leaves reports whether an interface leads out of the node: a default route uses it, or it has an
// address of the Node.
func (j *judge) leaves(l Link) bool {
	if slices.ContainsFunc(j.facts.Routes.Value, func(r Route) bool { return r.Dst.Bits() == 0 && r.Link == l.Index }) {
		return true
	}
	return j.facts.Cluster != nil && slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool {
		return slices.Contains(j.facts.Cluster.Node.Value.Addrs, p.Addr())
	})
}

func (j *judge) mtu() {
	up, ok := j.uplink()
	if !ok {
		j.info("", "no default route, so the uplink is unknown")
		return
	}
	n := 0
	for _, l := range j.facts.Links.Value {
		if !j.pods(l) || !l.Up {
			continue
		}
		n++
		if l.MTU > up.MTU {
			j.warn(l.Name, "its MTU is %d, that of the uplink %s %d", l.MTU, up.Name, up.MTU)
		}
	}
	if len(j.found) == 0 {
		j.ok("", "the uplink %s has %d; none of %d pod interfaces has more", up.Name, up.MTU, n)
	}
}

func (j *judge) conflicts() {
	services := netips(j.facts.Cluster)
	pods := slices.Clone(j.PodCIDRs)
	type network struct {
		what string
		at   netip.Prefix
	}
	var ours []network
	for _, p := range pods {
		ours = append(ours, network{"the pod network", p})
	}
	for _, s := range services {
		ours = append(ours, network{"the service network", s})
	}
	for i, a := range ours {
		for _, b := range ours[i+1:] {
			if a.at.Overlaps(b.at) {
				j.wrong(a.at.String(), "%s overlaps %s %s", a.what, b.what, b.at)
			}
		}
	}
	for _, l := range j.facts.Links.Value {
		for _, a := range l.Addrs {
			for _, s := range services {
				if l.Name != "kube-ipvs0" && s.Contains(a.Addr()) {
					j.wrong(s.String(), "the service network contains the address %s of interface %s", a.Addr(), l.Name)
				}
			}
			for _, p := range pods {
				if p.Contains(a.Addr()) && !j.pods(l) {
					j.warn(p.String(), "the pod network contains the address %s of interface %s, which does not look "+
						"like a pod interface", a.Addr(), l.Name)
				}
			}
		}
	}
	for _, r := range j.facts.Routes.Value {
		for _, s := range services {
			if r.Dst.Bits() > 0 && r.Dst.Overlaps(s) && j.linkName(r.Link) != "kube-ipvs0" {
				j.warn(s.String(), "the service network overlaps the route to %s through %s", r.Dst, j.linkName(r.Link))
			}
		}
	}
	switch {
	case j.facts.OS == "linux" && j.hidden(j.facts.Links.Err, j.facts.Routes.Err), len(j.found) > 0:
	case len(services) == 0:
		j.ok("", "no conflict in %s; the service network is unknown without an API server", list(pods))
	default:
		j.ok("", "no conflict in %s and %s", list(pods), list(services))
	}
}

func (j *judge) linkName(index int) string {
	for _, l := range j.facts.Links.Value {
		if l.Index == index {
			return l.Name
		}
	}
	return fmt.Sprintf("interface %d", index)
}

// netips returns the known service networks.
func netips(c *Cluster) []netip.Prefix {
	if c == nil {
		return nil
	}
	return c.ServiceCIDRs.Value
}

func list(ps []netip.Prefix) string {
	if len(ps) == 0 {
		return "no pod networks"
	}
	return lb.JoinPrefixes(ps, ", ")
}

// The default range of NodePorts; the proxy has no setting for another.
const firstNodePort, lastNodePort = 30000, 32767

func (j *judge) nodePorts() {
	seen := map[string]bool{}
	for _, s := range j.facts.Sockets.Value {
		port := s.At.Port()
		if port < firstNodePort || port > lastNodePort || s.Owner != "" && strings.HasPrefix(j.facts.Writer.Value,
			s.Owner) {
			continue
		}
		about := fmt.Sprintf("%d/%s", port, s.Proto)
		if seen[about] {
			continue
		}
		seen[about] = true
		owner := cmp.Or(s.Owner, "an invisible process")
		j.warn(about, "%s listens on %s", owner, s.At)
	}
	if len(j.found) == 0 {
		j.ok("", "no program listens on ports %d to %d", firstNodePort, lastNodePort)
	}
}

func (j *judge) localPorts() {
	var first, last int
	value := j.sysctl(portRange)
	if _, err := fmt.Sscan(value, &first, &last); err != nil {
		j.unknown("", fmt.Errorf("%s is %q", portRange, value))
		return
	}
	text := fmt.Sprintf("outgoing connections use ports %d to %d", first, last)
	switch {
	case last < firstNodePort || first > lastNodePort:
		j.ok("", "%s", text)
	case reserved(j.sysctl(portsReserved), max(first, firstNodePort), min(last, lastNodePort)):
		j.ok("", "%s; those of NodePorts are reserved", text)
	default:
		j.warn("", "%s, which overlaps NodePorts", text)
	}
}

// reserved reports whether a list such as 8080,30000-32767 contains all ports of a range.
func reserved(list string, first, last int) bool {
	for part := range strings.SplitSeq(list, ",") {
		var from, to int
		if n, _ := fmt.Sscanf(part, "%d-%d", &from, &to); n == 1 {
			to = from
		}
		if from <= first && first <= to {
			first = to + 1
		}
	}
	return first > last
}
