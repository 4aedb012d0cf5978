package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
	"kube-proxy/test/oracle"
)

// FuzzResolve compares [policy.Resolve] with its slow twin over random views, and checks the
// promises of every frontend.
func FuzzResolve(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(checkRandomView)
}

// TestResolveRandomViews is the part of FuzzResolve that is fast enough for every test run. It
// proves what the twin says of sources (SV-15, SV-16), serving sets (DP-50), health checks (HT-13)
// and unreachable endpoints (FO-06, FO-07).
func TestResolveRandomViews(t *testing.T) {
	for seed := range uint64(5000) {
		checkRandomView(t, seed, 0)
	}
}

func byKey(a, b *lb.Frontend) int { return a.Key.Compare(b.Key) }

func checkRandomView(t *testing.T, seed1, seed2 uint64) {
	g := generator{rand.New(rand.NewPCG(seed1, seed2))}
	v, s := g.view(), g.settings()
	v.Node.Unreachable = g.unreachable(v)

	got, want := policy.Resolve(v, s), oracle.Frontends(v, s)
	checkPromises(t, got, s)
	slices.SortFunc(got, byKey)
	if !slices.EqualFunc(got, want, (*lb.Frontend).Equal) {
		t.Fatalf("seeds %d, %d: view %s\nsettings %+v\ngot\n%v\nwant\n%v", seed1, seed2, describe(v), s, got, want)
	}
	checkRefused(t, v, s)
	// Slices have no order.
	g.Shuffle(len(v.Slices), func(i, j int) { v.Slices[i], v.Slices[j] = v.Slices[j], v.Slices[i] })
	again := policy.Resolve(v, s)
	slices.SortFunc(again, byKey)
	if !slices.EqualFunc(got, again, (*lb.Frontend).Equal) {
		t.Fatalf("seeds %d, %d: slices in another order give\n%v\ninstead of\n%v", seed1, seed2, again, got)
	}
	checkNode(t, policy.ResolveNode(v.Node, s), s)
}

// unreachable returns some of the endpoints and other nodes of the View, with each kind of verdict;
// often nothing.
func (g generator) unreachable(v cluster.View) (u cluster.Unreachable) {
	if g.IntN(2) == 0 {
		return u
	}
	u.Endpoints, u.Nodes = map[netip.AddrPort]bool{}, map[string]bool{}
	for _, sl := range v.Slices {
		for e := range sl.Endpoints.All() {
			for _, p := range sl.Ports {
				if g.IntN(3) == 0 {
					u.Endpoints[netip.AddrPortFrom(e.Addr, p.Port)] = g.IntN(2) == 0
				}
			}
			if node := e.Place().Node; node != "" && !e.OnNode(v.Node.NodeName) && g.IntN(4) == 0 {
				u.Nodes[node] = g.IntN(2) == 0
			}
		}
	}
	return u
}

// useOf has the uses of addresses in these fields.
var useOf = map[string]string{"spec.clusterIPs": "cluster IP", "status.loadBalancer.ingress": "load balancer",
	"spec.externalIPs": "external", "endpoints": "endpoint"}

// checkRefused checks that refusals are reported: a reported address is in no frontend, and
// removing it from the Service changes nothing.
func checkRefused(t *testing.T, v cluster.View, s policy.Settings) {
	t.Helper()
	reported := map[string]policy.Refusal{}
	for _, r := range policy.Refused(v, s) {
		if r.Addr.IsValid() && oracle.Serves(s, r.Addr, useOf[r.Field]) { // some port of it (TN-66, TN-98)
			if !slices.Contains(v.Node.Own, r.Addr) && !strings.Contains(r.Why, "API server") {
				t.Fatalf("reported %v, which is not reserved", r)
			}
			continue
		}
		reported[r.Field] = r
	}
	if v.Service == nil || v.Service.Type == cluster.TypeExternalName {
		if len(reported) > 0 {
			t.Fatalf("reported %v of a Service that has no addresses", reported)
		}
		return
	}
	want := func(field, use string, all []netip.Addr) {
		all = slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool {
			return lb.FamilyOf(a) != s.Family || oracle.Serves(s, a, use)
		})
		r := reported[field]
		if len(all) == 0 {
			if r != (policy.Refusal{}) {
				t.Fatalf("%s: reported %v, all are served", field, r)
			}
			return
		}
		if r.Addr != slices.MinFunc(all, netip.Addr.Compare) || r.More != len(all)-1 || r.Why == "" {
			t.Fatalf("%s: reported %+v, want the lowest of %v", field, r, all)
		}
	}
	want("spec.clusterIPs", "cluster IP", v.Service.ClusterIPs)
	if !slices.ContainsFunc(v.Service.ClusterIPs,
		func(a netip.Addr) bool { return oracle.Serves(s, a, "cluster IP") }) {
		return
	}
	want("status.loadBalancer.ingress", "load balancer", v.Service.LoadBalancerIPs)
	if !s.NoExternalIPs {
		want("spec.externalIPs", "external", v.Service.ExternalIPs)
	}
	var endpoints []netip.Addr
	for _, sl := range v.Slices {
		for e := range sl.Endpoints.All() {
			endpoints = append(endpoints, e.Addr)
		}
	}
	want("endpoints", "endpoint", endpoints)
}

// checkPromises checks the documented promises of Frontend in package lb and of Resolve's result.
func checkPromises(t *testing.T, rows []*lb.Frontend, s policy.Settings) {
	t.Helper()
	keys, sets := map[lb.Key]bool{}, map[lb.SetID]*lb.BackendSet{}
	for _, f := range rows {
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("%s: %s\n%s", f.Key, fmt.Sprintf(format, args...), f)
		}
		if keys[f.Key] {
			fail("the key comes twice")
		}
		keys[f.Key] = true
		if f.Kind == lb.HealthCheck {
			if f.Key.Port == 0 || !f.Key.IsNodePort() || f.Key.Proto != lb.TCP || !f.Accepts() ||
				f.Routes[0].From != lb.Anywhere ||
				f.LocalEndpoints < 0 || f.Affinity != 0 || f.Sources != nil || f.Serving != nil {
				fail("not a health check")
			}
			continue
		}
		if f.Accepts() || f.LocalEndpoints != 0 {
			fail("half a health check")
		}
		if f.Key.Port == 0 || f.Key.IsNodePort() != (f.Kind == lb.NodePort) || !f.Key.IsNodePort() &&
			lb.FamilyOf(f.Key.Addr) != s.Family {
			fail("not a key of kind %s in %s", f.Kind, s.Family)
		}
		if f.Affinity < 0 || f.Affinity > 24*time.Hour || f.Affinity%time.Second != 0 {
			fail("affinity %v", f.Affinity)
		}
		if len(f.Sources) > 0 && f.Kind != lb.LoadBalancer {
			fail("sources on a row of kind %s", f.Kind)
		}
		checkPrefixes(t, f.Sources, s.Family)
		if len(f.Routes) == 0 || f.Routes[len(f.Routes)-1].From != lb.Anywhere {
			fail("the last route is not for anywhere")
		}
		for i, r := range f.Routes {
			if i > 0 && f.Routes[i-1].From >= r.From {
				fail("routes out of order")
			}
			if (r.Do == lb.Balance) != (r.To != nil) || r.Masq && r.Do != lb.Balance {
				fail("route %d does not hold together", i)
			}
			if r.To == nil {
				continue
			}
			if was := sets[r.To.ID]; was != nil && was != r.To {
				fail("set %s is two values", r.To.ID)
			}
			sets[r.To.ID] = r.To
			if r.To.ID.Scope != lb.Cluster && r.To.ID.Scope != lb.Local {
				fail("a route to set %s", r.To.ID)
			}
			if r.To.ID.Service != f.Service || r.To.ID.Proto != f.Key.Proto || r.To.Backends.Len() == 0 {
				fail("set %s", r.To.ID)
			}
		}
		if problem := checkServing(f, sets); problem != "" {
			fail("%s", problem)
		}
	}
	for id, set := range sets {
		for i := range set.Backends.Len() {
			b := set.Backends.At(i)
			if i > 0 && set.Backends.At(i-1).Compare(b) >= 0 {
				t.Fatalf("set %s is not sorted: %v", id, set.Backends)
			}
			if b.Draining != set.Backends.At(0).Draining || id.Scope == lb.Local && !b.Local ||
				lb.FamilyOf(b.Addr.Addr()) != s.Family || b.Addr.Port() == 0 {
				t.Fatalf("set %s: backend %+v", id, b)
			}
		}
	}
}

func has(s *lb.BackendSet, is func(lb.Backend) bool) bool {
	return slices.ContainsFunc(slices.Collect(s.Backends.All()), is)
}

// checkServing checks DP-50, DP-53 and DP-54 for a frontend: everything that its routes reach
// serves, and more does, or Serving is nil, as for TCP.
func checkServing(f *lb.Frontend, sets map[lb.SetID]*lb.BackendSet) string {
	s := f.Serving
	if s == nil {
		return ""
	}
	if was := sets[s.ID]; was != nil && was != s {
		return "what serves is two values"
	}
	sets[s.ID] = s
	if want := (lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: lb.Serving}); s.ID != want ||
		f.Key.Proto == lb.TCP || s.Backends.Len() == 0 {
		return "what serves is the set " + s.ID.String()
	}
	routed := *f
	routed.Serving = nil
	for _, r := range f.Routes {
		if r.To != nil && has(r.To, func(b lb.Backend) bool { return !f.Serves(b.Addr) }) {
			return "a route has no serving backend"
		}
	}
	if !has(s, func(b lb.Backend) bool { return !routed.Serves(b.Addr) }) {
		return "what serves says nothing that the routes do not"
	}
	if has(s, func(b lb.Backend) bool { return b.Local || b.Draining }) {
		return "what serves says more than addresses"
	}
	return ""
}

func checkNode(t *testing.T, n lb.Node, s policy.Settings) {
	t.Helper()
	checkPrefixes(t, n.NodePorts, s.Family)
	checkPrefixes(t, n.Pods.Prefixes, s.Family)
	checkPrefixes(t, n.ServiceCIDRs, s.Family)
	if len(n.NodePorts) == 0 && !s.NodePortAddrs.Primary {
		t.Fatal("NodePorts answer nowhere, and the primary address is not configured")
	}
}

// checkPrefixes checks that ps are masked, sorted, of one family, and do not overlap.
func checkPrefixes(t *testing.T, ps []netip.Prefix, f lb.Family) {
	t.Helper()
	for i, p := range ps {
		if p != p.Masked() || lb.FamilyOf(p.Addr()) != f {
			t.Fatalf("prefixes %v: %s is not canonical", ps, p)
		}
		if i > 0 && (ps[i-1].Compare(p) >= 0 || ps[i-1].Overlaps(p)) {
			t.Fatalf("prefixes %v: unsorted, or they overlap", ps)
		}
	}
}

func describe(v cluster.View) string {
	out := fmt.Sprintf("%s %+v node %s", v.Name, v.Service, v.Node.NodeName)
	if v.Node.Node != nil {
		out += fmt.Sprintf(" %+v", *v.Node.Node)
	}
	for _, s := range v.Slices {
		out += fmt.Sprintf("\n  slice %s ipv6=%v ports %v", s.Name, s.IPv6, s.Ports)
		for e := range s.Endpoints.All() {
			out += fmt.Sprintf("\n    %s ready=%v serving=%v terminating=%v here=%v hints %+v",
				e.Addr, e.Ready, e.Serving, e.Terminating, e.OnNode(v.Node.NodeName), e.Hints)
		}
	}
	return out
}

// generator makes random views. It has few values, so that they collide.
type generator struct{ *rand.Rand }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

// some picks each with the same chance.
func some[T any](g generator, percent int, from ...T) []T {
	var out []T
	for _, x := range from {
		if g.chance(percent) {
			out = append(out, x)
		}
	}
	return out
}

func addrs(words ...string) []netip.Addr {
	var out []netip.Addr
	for _, w := range words {
		out = append(out, netip.MustParseAddr(w))
	}
	return out
}

func prefixes(words ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, w := range words {
		out = append(out, netip.MustParsePrefix(w))
	}
	return out
}

// special holds addresses on both sides of the edges of the classes of SV-26.
var special = addrs("0.0.0.0", "0.255.255.255", "1.0.0.0", "126.255.255.255", "127.0.0.1", "127.255.255.255",
	"128.0.0.0",
	"169.253.255.255", "169.254.0.0", "169.254.169.254", "169.254.255.255", "169.255.0.0", "223.255.255.255",
	"224.0.0.0", "224.0.0.251",
	"239.255.255.255", "240.0.0.0", "255.255.255.254", "255.255.255.255", "::", "::1", "::2", "::7f00:1", "::1:0:0",
	"::ffff:192.0.2.9",
	"64:ff9b::7f00:1", "fe80::1", "fe80::1%eth0", "febf::", "fec0::", "fdff::", "feff::", "ff00::", "ff02::1",
	"ff0e::1")

func (g generator) settings() policy.Settings {
	s := policy.Settings{
		Family:        pick(g, lb.IPv4, lb.IPv6),
		MasqueradeAll: g.chance(20),
		DetectLocal: pick(g, "", policy.ClusterCIDR, policy.NodeCIDR, policy.BridgeInterface,
			policy.InterfaceNamePrefix),
		ClusterCIDRs: some(g, 40, prefixes("10.1.0.0/16", "10.1.2.0/24", "fd00:1::/48", "10.9.0.0/16")...),
		PodInterface: pick(g, "", "cbr0"),
	}
	s.NoExternalIPs = g.chance(20)
	s.ExternalIPCIDRs = some(g, 10, prefixes("192.0.2.0/31", "2001:db8::/32", "0.0.0.0/0")...)
	s.NodePortAddrs.Primary = g.chance(50)
	s.NodePortAddrs.Prefixes = some(g, 30, prefixes("172.18.0.0/16", "172.18.0.2/32", "0.0.0.0/0", "fd00::/64",
		"127.0.0.0/8")...)
	if g.chance(30) {
		s.NodePortAddrs.NodeIP = pick(g, addrs("172.18.0.9", "fd00::9", "0.0.0.0", "::", "10.0.0.9")...)
	}
	if g.chance(30) {
		s.OwnPorts = []policy.OwnPort{{Port: pick[uint16](g, 80, 443, 30080), Of: "the kubelet's"},
			{Port: 81, Of: "the proxy's"}}
	}
	return s
}

func (g generator) view() cluster.View {
	v := cluster.View{Name: cluster.Name{Namespace: "shop", Name: "web"}}
	v.Node.NodeName = pick(g, "node-1", "node-1", "node-1", "")
	if g.chance(80) {
		v.Node.Node = &cluster.Node{
			Name: v.Node.NodeName, Zone: pick(g, "", "a", "b"),
			Addrs:    some(g, 60, addrs("172.18.0.2", "fd00::2", "10.0.0.2")...),
			PodCIDRs: some(g, 50, prefixes("10.1.2.0/24", "fd00:1:2::/64")...),
		}
	}
	v.Node.Own = some(g, 40, addrs("172.18.0.200", "192.0.2.1", "192.0.2.3", "2001:db8::1")...)
	v.HealthPorts = some[uint16](g, 20, 80, 443)
	for _, a := range some(g, 20, addrs("192.0.2.1", "2001:db8::3")...) {
		v.Node.APIServers = append(v.Node.APIServers, netip.AddrPortFrom(a, pick[uint16](g, 80, 443)))
	}
	v.Node.CIDRs = some(g, 50, prefixes("10.96.0.0/12", "10.96.0.0/16", "fd00:96::/112")...)
	if g.chance(95) {
		v.Service = g.service(v.Name)
	}
	for i := range g.IntN(5) {
		v.Slices = append(v.Slices, g.slice(i, v.Name))
	}
	return v
}

func (g generator) service(n cluster.Name) *cluster.Service {
	s := &cluster.Service{
		Name: n,
		Type: pick(g, cluster.TypeClusterIP, cluster.TypeNodePort, cluster.TypeLoadBalancer,
			cluster.TypeLoadBalancer),
		ClusterIPs: append(some(g, 3, special...), some(g, 85, addrs("10.96.0.7", "fd00:96::7")...)...),
		ExternalIPs: some(g, 25, addrs("192.0.2.1", "192.0.2.2", "2001:db8::1", "10.96.0.7",
			pick(g, special...).String())...),
		LoadBalancerIPs: some(g, 25, addrs(pick(g, special...).String(), "192.0.2.1", "192.0.2.3", "2001:db8::1",
			"2001:db8::3", "172.18.0.200")...),
		SourceRanges: some(g, 15, prefixes("172.18.0.0/16", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24", "fd00::/16",
			"0.0.0.0/0", "2001:db8::/32", "10.1.2.3/8")...),
		InternalPolicy:  pick(g, cluster.PolicyCluster, cluster.PolicyLocal),
		ExternalPolicy:  pick(g, cluster.PolicyCluster, cluster.PolicyLocal),
		AffinitySeconds: pick(g, int32(0), 0, 0, 1, 10800, 86400, 86401, -1),

		HealthCheckNodePort: pick[uint16](g, 0, 32100, 32100, 32100, 30080),
		PreserveDestination: g.chance(20),
	}
	if g.chance(3) {
		s.Type = cluster.TypeExternalName
	}
	ports := g.IntN(4)
	if g.chance(5) {
		ports = 12 // more than are searched one by one
	}
	for i := range ports {
		s.Ports = append(s.Ports, cluster.ServicePort{
			Name:     pick(g, fmt.Sprintf("p%d", i), fmt.Sprintf("p%d", i), ""),
			Protocol: pick(g, cluster.TCP, cluster.TCP, cluster.UDP, cluster.SCTP),
			Port:     pick[uint16](g, 80, 443, 53, 0, uint16(80+i)),
			NodePort: pick[uint16](g, 0, 30080, 30443, 65535),
		})
	}
	// The API rejects two ports with the same name and protocol.
	seen := map[string]bool{}
	s.Ports = slices.DeleteFunc(s.Ports, func(p cluster.ServicePort) bool {
		id := fmt.Sprint(p.Name, p.Protocol)
		was := seen[id]
		seen[id] = true
		return was
	})
	if g.chance(2) { // more frontends than are searched one by one
		for i := range 30 {
			s.Ports = append(s.Ports, cluster.ServicePort{Name: fmt.Sprintf("q%d", i), Protocol: cluster.TCP,
				Port: uint16(1000 + i%25), NodePort: uint16(31000 + i)})
		}
	}
	return s
}

func (g generator) slice(i int, service cluster.Name) *cluster.Slice {
	s := &cluster.Slice{Name: cluster.Name{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}, Service: service,
		IPv6: g.chance(40)}
	for p := range pick(g, 3, 3, 3, 3, 12) {
		if g.chance(70) {
			s.Ports = append(s.Ports, cluster.SlicePort{
				Name:     pick(g, fmt.Sprintf("p%d", p), fmt.Sprintf("p%d", p), ""),
				Protocol: pick(g, cluster.TCP, cluster.TCP, cluster.UDP, cluster.SCTP),
				Port:     pick[uint16](g, 8080, 8080, 8443, 0),
			})
		}
	}
	if g.chance(2) {
		s.Ports = append(s.Ports, cluster.SlicePort{Name: "q7", Protocol: cluster.TCP, Port: 8080})
	}
	// The chances are fixed for each slice, since mixed slices would nearly always have a ready
	// endpoint without hints.
	readyChance, hintChance := pick(g, 0, 20, 80, 100), pick(g, 0, 0, 80, 100)
	n := g.IntN(5)
	if g.chance(3) {
		n = 40 // more than the buffer on the stack holds
	}
	for range n {
		s.Endpoints = s.Endpoints.With(g.endpoint(s.IPv6, n, readyChance, hintChance))
	}
	return s
}

func (g generator) endpoint(ipv6 bool, n, readyChance, hintChance int) cluster.Endpoint {
	e := cluster.Endpoint{Ready: g.chance(readyChance), Serving: g.chance(70), Terminating: g.chance(50)}
	e.Addr = netip.AddrFrom4([4]byte{10, 1, 2, byte(g.IntN(n + 2))})
	if ipv6 != g.chance(3) {
		e.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 3: 1, 15: byte(g.IntN(n + 2))})
	}
	if g.chance(4) {
		e.Addr = pick(g, special...)
	}
	if g.chance(80) {
		e.Where = cluster.At(pick(g, "node-1", "node-2"), pick(g, "", "a", "b"))
	}
	if g.chance(hintChance) {
		e.Hints = &cluster.Hints{Zones: some(g, 60, "a", "b"), Nodes: some(g, 40, "node-1", "node-2")}
	}
	return e
}
