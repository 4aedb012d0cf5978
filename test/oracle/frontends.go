package oracle

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Frontends is [policy.Resolve] written for readability: the rows of docs/behaviour.md, one after
// the other, at any cost. It goes from the packet to the specification, not the other way: for each
// source it computes the outcome, and only then puts the outcomes into routes. The frontends are
// ordered by key.
func Frontends(v cluster.View, s policy.Settings) []*lb.Frontend {
	w := world{v, s}
	svc := v.Service
	if svc == nil { // SV-01: slices alone have no effect
		return nil
	}
	if svc.Type == cluster.TypeExternalName { // SV-10, even with a stale cluster IP
		return nil
	}
	clusterIPs := w.served(svc.ClusterIPs, "cluster IP")
	if len(clusterIPs) == 0 { // SV-10 headless; SV-11 invisible in this family
		return nil
	}
	// The kinds in their order of priority for an address that the service names twice, port by
	// port.
	rows := map[lb.Key]*lb.Frontend{}
	claim := func(k lb.Key, kind lb.Kind, p cluster.ServicePort) {
		if rows[k] == nil && p.Port != 0 && k.Port != 0 && !w.reserved(k, kind) {
			rows[k] = w.row(k, kind, p)
		}
	}
	for _, p := range svc.Ports {
		key := func(a netip.Addr, port uint16) lb.Key {
			return lb.Key{Addr: a, Port: port, Proto: lb.Proto(p.Protocol)}
		}
		claim(key(clusterIPs[0], p.Port), lb.ClusterIP, p)
		for _, a := range w.served(svc.LoadBalancerIPs, "load balancer") { // SV-14
			claim(key(a, p.Port), lb.LoadBalancer, p)
		}
		if !s.NoExternalIPs {
			for _, a := range w.served(svc.ExternalIPs, "external") { // SV-13
				claim(key(a, p.Port), lb.ExternalIP, p)
			}
		}
		switch svc.Type { // SV-17
		case cluster.TypeNodePort, cluster.TypeLoadBalancer:
			claim(key(netip.Addr{}, p.NodePort), lb.NodePort, p)
		}
	}
	if svc.Type == cluster.TypeLoadBalancer && svc.ExternalPolicy == cluster.PolicyLocal && len(rows) > 0 { // SV-21
		k := lb.Key{Port: svc.HealthCheckNodePort, Proto: lb.TCP}
		if rows[k] == nil && k.Port != 0 {
			rows[k] = &lb.Frontend{
				Key: k, Service: svc.Name.Namespace + "/" + svc.Name.Name, Kind: lb.HealthCheck,
				Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}, LocalEndpoints: w.readyHere(),
			}
		}
	}
	return slices.SortedFunc(maps.Values(rows), byKey)
}

func byKey(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) }

// world is all that a decision may depend on.
type world struct {
	cluster.View
	policy.Settings
}

func (w world) served(addrs []netip.Addr, use string) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !w.serves(a, use) })
}

// unserved are the networks of SV-26, and the uses for which their addresses are served all the
// same.
var unserved = map[string][]string{
	"0.0.0.0/8": nil, "127.0.0.0/8": nil, "224.0.0.0/4": nil, "255.255.255.255/32": nil,
	"169.254.0.0/16": {"cluster IP"}, "240.0.0.0/4": {"cluster IP", "endpoint"},
	"::/96": nil, "::ffff:0:0/96": nil, "fe80::/10": nil, "ff00::/8": nil,
}

func (w world) serves(a netip.Addr, use string) bool { return Serves(w.Settings, a, use) }

// reserved reports whether the key is an API server's (TN-66), or of a server of this machine
// (TN-98).
func (w world) reserved(k lb.Key, kind lb.Kind) bool {
	if k.Proto != lb.TCP || kind == lb.ClusterIP {
		return false
	}
	own := slices.ContainsFunc(w.OwnPorts, func(o policy.OwnPort) bool { return o.Port == k.Port })
	if kind == lb.NodePort {
		return own
	}
	return slices.Contains(w.Node.APIServers, netip.AddrPortFrom(k.Addr, k.Port)) ||
		slices.Contains(w.Node.Own, k.Addr) && (own || slices.Contains(w.HealthPorts, k.Port))
}

// Serves reports whether an address is served as "cluster IP", "load balancer", "external" or
// "endpoint" (SV-26, SV-13).
func Serves(s policy.Settings, a netip.Addr, use string) bool {
	if !a.IsValid() || a.Zone() != "" || a.Is4() != (s.Family == lb.IPv4) {
		return false
	}
	for network, but := range unserved {
		if contains(netip.MustParsePrefix(network), a) && !slices.Contains(but, use) {
			return false
		}
	}
	inside := func(p netip.Prefix) bool { return contains(p, a) }
	return use != "external" || len(s.ExternalIPCIDRs) == 0 || slices.ContainsFunc(s.ExternalIPCIDRs, inside)
}

// contains is Prefix.Contains for IPv4-mapped addresses too, which that takes for neither family.
func contains(p netip.Prefix, a netip.Addr) bool {
	if a.Is4() != p.Addr().Is4() {
		return false
	}
	masked, err := a.Prefix(p.Bits())
	return err == nil && masked == p
}

// row computes the routes of the three kinds of sources, and leaves out routes that the next one
// makes redundant.
func (w world) row(k lb.Key, kind lb.Kind, p cluster.ServicePort) *lb.Frontend {
	f := &lb.Frontend{Key: k, Service: w.serviceName(p), Kind: kind}
	pods, host, anywhere := w.outcome(lb.Pods, kind, p), w.outcome(lb.Host, kind, p), w.outcome(lb.Anywhere, kind, p)
	if w.hasDetector() && (!same(pods, host) || !same(pods, anywhere)) { // SV-67
		f.Routes = append(f.Routes, pods)
	}
	if !same(host, anywhere) {
		f.Routes = append(f.Routes, host)
	}
	f.Routes = append(f.Routes, anywhere)

	// SV-18, if there are backends to stick to; and the address that they see.
	if slices.ContainsFunc(f.Routes, func(r lb.Route) bool { return r.Do == lb.Balance }) {
		f.Affinity = time.Duration(w.Service.AffinitySeconds) * time.Second
		f.Affinity = max(0, min(f.Affinity, 24*time.Hour))
		f.PreserveDestination = w.Service.PreserveDestination && (kind == lb.LoadBalancer || kind == lb.ExternalIP)
	}
	f.Serving = w.serving(p, f.Routes)
	if kind == lb.LoadBalancer { // SV-15: only VIPs
		f.Sources = w.sources(k.Addr)
	}
	return f
}

func same(a, b lb.Route) bool { a.From, b.From = 0, 0; return a.Equal(b) }

// outcome is SV-50 to SV-57: the treatment of a connection from one kind of source.
func (w world) outcome(from lb.From, kind lb.Kind, p cluster.ServicePort) lb.Route {
	r := lb.Route{From: from, Do: lb.Balance}
	cluster_, local := w.set(lb.Cluster, p), w.set(lb.Local, p)
	internal, external := w.Service.InternalPolicy == cluster.PolicyLocal,
		w.Service.ExternalPolicy == cluster.PolicyLocal
	switch {
	case cluster_ == nil: // SV-50, SV-41
		r.Do = lb.Reject

	case kind == lb.ClusterIP && internal && local == nil: // SV-51
		r.Do = lb.Drop
	case kind == lb.ClusterIP && internal: // SV-19
		r.To, r.Masq = local, w.masqueradeClusterIP(from)
	case kind == lb.ClusterIP:
		r.To, r.Masq = cluster_, w.masqueradeClusterIP(from)

	case !external: // SV-54
		r.To, r.Masq = cluster_, true
	case from == lb.Pods: // SV-53, SV-56
		r.To = cluster_
	case from == lb.Host: // SV-53, SV-57
		r.To, r.Masq = cluster_, true
	case local != nil: // SV-55
		r.To = local
	default: // SV-52
		r.Do = lb.Drop
	}
	return r
}

func (w world) masqueradeClusterIP(from lb.From) bool {
	switch {
	case w.MasqueradeAll: // SV-58
		return true
	case !w.hasDetector(): // SV-67
		return false
	}
	return from != lb.Pods // SV-59
}

// hasDetector reports whether this family has a test for "local" (3.5, CF-66).
func (w world) hasDetector() bool {
	d := policy.ResolveNode(w.Node, w.Settings).Pods
	return !d.IsZero()
}

func (w world) serviceName(p cluster.ServicePort) string { // SV-12
	name := w.Service.Name.Namespace + "/" + w.Service.Name.Name
	if p.Name != "" {
		name += ":" + p.Name
	}
	return name
}

// serving is DP-50: where flows may stay, unless the routes go to the same endpoints. TCP has none
// (DP-53).
func (w world) serving(p cluster.ServicePort, routes []lb.Route) *lb.BackendSet {
	if p.Protocol == cluster.TCP {
		return nil
	}
	all := map[netip.AddrPort]lb.Backend{}
	w.each(p, func(at netip.AddrPort, e cluster.Endpoint) {
		if e.Ready || e.Serving && (!e.Terminating || !w.taken(p, at)) {
			all[at] = lb.Backend{Addr: at}
		}
	})
	reached := map[netip.AddrPort]bool{}
	for _, r := range routes {
		if r.Do == lb.Balance {
			for b := range r.To.Backends.All() {
				reached[b.Addr] = true
			}
		}
	}
	if len(reached) == len(all) { // it is never more
		return nil
	}
	return &lb.BackendSet{
		ID:       lb.SetID{Service: w.serviceName(p), Proto: lb.Proto(p.Protocol), Scope: lb.Serving},
		Backends: lb.BackendsOf(slices.SortedFunc(maps.Values(all), lb.Backend.Compare)...),
	}
}

// endpoint is the merged data of the slices about one address and port.
type endpoint struct {
	local, ready, draining bool
	unplaced               bool // an entry has no node (TN-68)
	nodeHints, zoneHints   []string
	avoided                avoidance
}

// avoidance is why new connections do not go to an endpoint; of several entries the least counts.
type avoidance int

const (
	reached avoidance = iota
	silent            // its own probes fail
	gone              // its node is unreachable
)

// avoidance is FO-03 to FO-08 for an entry of a slice.
func (w world) avoidance(at netip.AddrPort, e cluster.Endpoint, proto cluster.Protocol) avoidance {
	node, u := e.Place().Node, w.Node.Unreachable
	here := w.Node.NodeName != "" && node == w.Node.NodeName
	alone, noted := u.Endpoints[at]
	whole, down := u.Nodes[node]
	switch {
	case down && !here && (whole || proto != cluster.TCP || noted):
		return gone
	case proto == cluster.TCP && alone:
		return silent
	}
	return reached
}

// halve is FO-07: of the ready endpoints at each port at most half are avoided, those with the
// highest addresses, except those of unreachable nodes.
func halve(all map[netip.AddrPort]endpoint) {
	ready, avoided := map[uint16]int{}, map[uint16]int{}
	for at, e := range all {
		if e.ready {
			ready[at.Port()]++
		}
		if e.ready && e.avoided == gone {
			avoided[at.Port()]++
		}
	}
	for _, at := range slices.Backward(slices.SortedFunc(maps.Keys(all), netip.AddrPort.Compare)) {
		e := all[at]
		if !e.ready || e.avoided != silent {
			continue
		}
		avoided[at.Port()]++
		if 2*avoided[at.Port()] > ready[at.Port()] {
			avoided[at.Port()]--
			e.avoided = reached
			all[at] = e
		}
	}
}

// endpoints gathers the endpoints of a port from all slices.
func (w world) endpoints(p cluster.ServicePort) map[netip.AddrPort]endpoint {
	out := map[netip.AddrPort]endpoint{}
	w.each(p, func(at netip.AddrPort, e cluster.Endpoint) {
		if e.Ready || !w.taken(p, at) {
			out[at] = w.merge(out[at], e, w.avoidance(at, e, p.Protocol))
		}
	})
	// An endpoint that is neither ready nor terminating and serving does not exist.
	maps.DeleteFunc(out, func(_ netip.AddrPort, e endpoint) bool { return !e.ready && !e.draining })
	halve(out)
	return out
}

// taken reports whether a running pod that is not ready has the address now, and none that is.
func (w world) taken(p cluster.ServicePort, at netip.AddrPort) bool {
	running, ready := false, false
	w.each(p, func(other netip.AddrPort, e cluster.Endpoint) {
		if other == at {
			running, ready = running || !e.Ready && !e.Terminating, ready || e.Ready
		}
	})
	return running && !ready
}

// each visits all entries of the slices for a port.
func (w world) each(p cluster.ServicePort, visit func(netip.AddrPort, cluster.Endpoint)) {
	for _, sl := range w.Slices {
		for _, sp := range sl.Ports {
			if sp.Name != p.Name || sp.Protocol != p.Protocol || sp.Port == 0 { // SV-22, SV-31
				continue
			}
			for e := range sl.Endpoints.All() {
				if sl.IPv6 != (w.Family == lb.IPv6) || !w.serves(e.Addr, "endpoint") { // SV-34
					continue
				}
				visit(netip.AddrPortFrom(e.Addr, sp.Port), e)
			}
		}
	}
}

// merge adds one entry of a slice (SV-32). Entries that cannot serve have no effect.
func (w world) merge(known endpoint, e cluster.Endpoint, why avoidance) endpoint {
	usable := e.Ready || e.Serving && e.Terminating
	if !usable {
		return known
	}
	if first := !known.ready && !known.draining; first || why < known.avoided {
		known.avoided = why
	}
	if w.Node.NodeName != "" && e.Place().Node == w.Node.NodeName { // SV-33
		known.local = true
	}
	known.unplaced = known.unplaced || e.Place().Node == ""
	if e.Ready {
		known.ready = true
		if e.Hints != nil {
			known.nodeHints = append(slices.Clip(known.nodeHints), e.Hints.Nodes...)
			known.zoneHints = append(slices.Clip(known.zoneHints), e.Hints.Zones...)
		}
	}
	known.draining = !known.ready
	return known
}

// set is the set of one scope; nil if it is empty.
func (w world) set(scope lb.Scope, p cluster.ServicePort) *lb.BackendSet {
	all := w.endpoints(p)
	inUse := maps.Clone(all)
	maps.DeleteFunc(inUse, func(_ netip.AddrPort, e endpoint) bool { return e.avoided != reached })
	var chosen []lb.Backend
	choose := func(from map[netip.AddrPort]endpoint, which func(endpoint) bool) {
		if len(chosen) > 0 { // an earlier choice is better
			return
		}
		for at, e := range from {
			if which(e) {
				chosen = append(chosen, lb.Backend{Addr: at, Local: e.local, Unplaced: e.unplaced && !e.local,
					Draining: !e.ready})
			}
		}
	}
	for _, from := range []map[netip.AddrPort]endpoint{inUse, all} { // FO-06
		switch scope {
		case lb.Cluster: // SV-36
			topology := w.topology(from)
			choose(from, func(e endpoint) bool { return e.ready && topology(e) })
			choose(from, func(e endpoint) bool { return e.draining })
		case lb.Local: // SV-37
			choose(from, func(e endpoint) bool { return e.local && e.ready })
			choose(from, func(e endpoint) bool { return e.local && e.draining })
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	slices.SortFunc(chosen, lb.Backend.Compare)
	return &lb.BackendSet{ID: lb.SetID{Service: w.serviceName(p), Proto: lb.Proto(p.Protocol), Scope: scope},
		Backends: lb.BackendsOf(chosen...)}
}

// readyHere is HT-13: how many addresses on this node have a port of the Service that is ready and
// not on its way out. Avoided ones count if no other is left (FO-06).
func (w world) readyHere() int {
	found, avoided := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, p := range w.Service.Ports {
		if p.Port == 0 {
			continue
		}
		w.each(p, func(at netip.AddrPort, e cluster.Endpoint) {
			here := w.Node.NodeName != "" && e.Place().Node == w.Node.NodeName // SV-33
			switch {
			case !here || !e.Ready || e.Terminating:
			case w.avoidance(at, e, p.Protocol) == reached:
				found[at.Addr()] = true
			default:
				avoided[at.Addr()] = true
			}
		})
	}
	if len(found) == 0 {
		return len(avoided)
	}
	return len(found)
}

// topology is SV-38, which looks at ready endpoints only.
func (w world) topology(all map[netip.AddrPort]endpoint) func(endpoint) bool {
	every := func(has func(endpoint) bool) bool {
		for _, e := range all {
			if e.ready && !has(e) {
				return false
			}
		}
		return true
	}
	some := func(has func(endpoint) bool) bool { return !every(func(e endpoint) bool { return !has(e) }) }

	hasNodeHints := func(e endpoint) bool { return len(e.nodeHints) > 0 }
	thisNode := func(e endpoint) bool { return w.Node.NodeName != "" && slices.Contains(e.nodeHints, w.Node.NodeName) }
	if every(hasNodeHints) && some(thisNode) { // (1)
		return thisNode
	}
	zone := ""
	if w.Node.Node != nil {
		zone = w.Node.Node.Zone
	}
	hasZoneHints := func(e endpoint) bool { return len(e.zoneHints) > 0 }
	thisZone := func(e endpoint) bool { return zone != "" && slices.Contains(e.zoneHints, zone) }
	if every(hasZoneHints) && some(thisZone) { // (2)
		return thisZone
	}
	return func(endpoint) bool { return true } // (3)
}

// sources is SV-15 and SV-16 for one VIP.
func (w world) sources(vip netip.Addr) []netip.Prefix {
	ranges := w.prefixes(w.Service.SourceRanges)
	nodeAllowed := false
	if ip, known := w.nodeIP(); known {
		nodeAllowed = slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
	}
	if nodeAllowed {
		ranges = append(ranges, netip.PrefixFrom(vip, vip.BitLen()))
	}
	var widest []netip.Prefix // those that no other contains
	for i, p := range ranges {
		inside := func(j int, q netip.Prefix) bool {
			return q.Bits() < p.Bits() && q.Contains(p.Addr()) || q == p && j < i
		}
		hidden := false
		for j, q := range ranges {
			hidden = hidden || inside(j, q)
		}
		if p.Bits() == 0 { // all sources
			return nil
		}
		if !hidden {
			widest = append(widest, p)
		}
	}
	slices.SortFunc(widest, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return widest
}

func (w world) prefixes(all []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range all {
		if p.IsValid() && p.Addr().Is4() == (w.Family == lb.IPv4) {
			out = append(out, p.Masked())
		}
	}
	return out
}

func (w world) nodeIP() (ip netip.Addr, known bool) {
	candidates := []netip.Addr{w.NodePortAddrs.NodeIP}
	if w.Node.Node != nil {
		candidates = append(candidates, w.Node.Node.Addrs...)
	}
	for _, a := range candidates {
		if a.IsValid() && !a.IsUnspecified() && a.Zone() == "" && !a.Is4In6() && a.Is4() == (w.Family == lb.IPv4) {
			return a, true
		}
	}
	return netip.Addr{}, false
}
