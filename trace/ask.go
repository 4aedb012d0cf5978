package trace

import (
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// The protocols of pings, for [Packet.Proto]; the port of such a packet means nothing. No Service
// has them.
const (
	ICMPv4 lb.Proto = 1
	ICMPv6 lb.Proto = 58
)

// maxConflicts is how many conflicts an answer names.
const maxConflicts = 5

// Ask computes the treatment of a packet by the table in a mode. Its cost follows the number of
// backends of one frontend, not the size of the table or the number of Services that claim the key.
// It only reads, and the answer shares only constant parts with the table.
func Ask(t *lb.Table, how Mode, p Packet) Answer {
	q := question{table: t, how: how, packet: p, Answer: Answer{Backends: []Backend{}, Why: []string{}}}
	switch row := q.find(); {
	case row != nil:
		q.row(row)
	default:
		q.unknown()
	}
	if q.Verdict == Drop && how.Unfiltered && !serves(q.Frontend) {
		q.Verdict = Reject
		q.say("In this mode nothing drops packets, so it is rejected.")
	}
	if q.Verdict != Balance {
		q.Decides = q.Why[len(q.Why)-1]
	}
	return q.Answer
}

// serves reports whether the frontend has backends for any client.
func serves(row *lb.Frontend) bool {
	return row != nil && slices.ContainsFunc(row.Routes, func(r lb.Route) bool { return r.Do == lb.Balance })
}

// question is one call of Ask.
type question struct {
	table  *lb.Table
	how    Mode
	packet Packet
	Answer
}

// find returns the frontend for the packet: one of the address before a NodePort, and one that the
// mode serves before one that it does not.
func (q *question) find() *lb.Frontend {
	to := q.packet.To
	row := q.table.Get(lb.Key{Addr: to.Addr(), Port: to.Port(), Proto: q.packet.Proto})
	if row != nil && q.serves(row) {
		return row
	}
	if port := q.nodePort(); port != nil && (row == nil || q.serves(port)) {
		return port
	}
	return row
}

// nodePort returns the frontend of the NodePort that the packet meets at an address of this node.
func (q *question) nodePort() *lb.Frontend {
	to := q.packet.To
	row := q.table.Get(lb.Key{Port: to.Port(), Proto: q.packet.Proto})
	switch {
	case row == nil || !q.packet.Here:
		return nil
	case row.Accepts() || q.how.Served != nil || q.proxied():
		return row
	case !lb.Within(q.table.Node.NodePorts, to.Addr()):
		q.say("%s has the NodePort %d/%s, but --nodeport-addresses selects %s, and %s is in none of them.",
			row.Service, row.Key.Port, row.Key.Proto, named(q.table.Node.NodePorts), to.Addr())
		return nil
	case to.Addr().IsLoopback() && !q.connected() && !(q.how.Loopback && to.Addr().Is4()):
		q.say("%s has the NodePort %d/%s, which does not answer on loopback addresses.", row.Service, row.Key.Port,
			row.Key.Proto)
		return nil
	}
	return row
}

// row answers by a frontend.
func (q *question) row(row *lb.Frontend) {
	q.Frontend, q.Service, q.FrontendKey, q.Kind = row, row.Service, row.Key.String(), row.Kind.String()
	q.named(row)
	q.conflicts(row)
	if row.Accepts() {
		q.Verdict = Pass
		q.say("This node answers the health checks of load balancers there; endpoints on it: %d.", row.LocalEndpoints)
		return
	}
	row = q.served(row)
	if row == nil {
		q.Verdict = Pass
		return
	}
	q.SourceRanges = row.Sources
	if len(row.Sources) > 0 && !q.sources(row) {
		q.Verdict = Drop
		return
	}
	if q.proxied() {
		q.localhost(row)
		return
	}
	q.take(row, q.route(row))
}

// proxied reports whether the packet is for the address at which the proxy may listen for
// NodePorts.
func (q *question) proxied() bool {
	at := q.packet.To.Addr()
	return q.how.LocalhostProxy && q.packet.Here && at == lb.FamilyOf(at).Loopback() && !q.connected()
}

// connected reports whether a program of the node asks a loopback address for a NodePort, to which
// the mode connects its socket.
func (q *question) connected() bool {
	at := q.packet.To.Addr()
	return q.how.LocalhostSockets && q.packet.Host && at.IsLoopback() && lb.Within(q.table.Node.NodePorts, at)
}

// localhost answers by a NodePort for which the proxy listens.
func (q *question) localhost(row *lb.Frontend) {
	last := row.Last()
	switch {
	case !q.table.Node.Localhost.IsValid():
		q.Verdict = Reject
		q.say("--nodeport-addresses does not select localhost, so the packet is rejected; a CIDR selects it if it "+
			"contains %s, except /0.", q.packet.To.Addr())
	case q.packet.Proto != lb.TCP:
		q.Verdict = Reject
		q.say("On localhost this mode serves only TCP, so the packet is rejected.")
	case last.Do != lb.Balance:
		q.Verdict, q.Route = Reject, last.From.String()
		q.say("No endpoint may serve clients from outside the cluster, so the proxy does not listen, and clients " +
			"are rejected.")
	default:
		q.how.Terminates = true
		q.take(row, last)
	}
}

// sources reports whether the frontend admits the source of the packet. The frontend's own address
// among its sources was not configured: it is added if this node is within the ranges (SV-16), and
// admits packets with this source.
func (q *question) sources(row *lb.Frontend) (may bool) {
	own := netip.PrefixFrom(row.Key.Addr, row.Key.Addr.BitLen())
	ranges, itself := row.Sources, false
	if i := slices.Index(ranges, own); i >= 0 && len(ranges) > 1 {
		ranges, itself = slices.Delete(slices.Clone(ranges), i, i+1), true
	}
	from := q.packet.From.Addr()
	switch text := "loadBalancerSourceRanges allows only " + named(ranges) + ", and "; {
	case lb.Within(ranges, from):
		q.say("%s%s is among them.", text, from)
	case itself && from == own.Addr():
		q.say("%sthe address itself: %s is that address.", text, from)
	case itself:
		q.say("%sthe address itself: %s is neither.", text, from)
	default:
		q.say("%s%s is in none of them.", text, from)
	}
	return lb.Within(row.Sources, from)
}

// served returns the frontend as the mode serves it; nil if it does not.
func (q *question) served(row *lb.Frontend) *lb.Frontend {
	if q.how.Served == nil {
		return row
	}
	kept, why := q.how.Served(q.table.Node, row, q.packet)
	if why != "" {
		q.say("%s", why)
	}
	if kept == nil {
		q.say("Mode %s does not serve it: the packet continues unchanged.", q.how.Name)
	}
	return kept
}

// serves reports whether the mode serves a frontend.
func (q *question) serves(row *lb.Frontend) bool {
	if q.how.Served == nil || row.Accepts() {
		return true
	}
	kept, _ := q.how.Served(q.table.Node, row, q.packet)
	return kept != nil
}

// named states the owner of the frontend.
func (q *question) named(row *lb.Frontend) {
	switch row.Kind {
	case lb.NodePort:
		q.NodePorts = q.table.Node.NodePorts
		q.say("Port %d/%s of this node is a NodePort of %s.", row.Key.Port, row.Key.Proto, row.Service)
	case lb.HealthCheck:
		q.say("Port %d/%s of this node is the health check port of %s.", row.Key.Port, row.Key.Proto, row.Service)
	default:
		q.say("%s is a port of the %s of %s.", row.Key, row.Kind.Words(), row.Service)
	}
	if q.table.Node.IsProvisional(row) {
		q.say("The address is of the service network: %s uses it until a Service gets it as its cluster IP.",
			lb.OwnerOf(row.Service))
	}
}

// conflicts lists the other Services that claim the frontend's key.
func (q *question) conflicts(row *lb.Frontend) {
	first, all := q.table.FirstConflicts(row.Key, maxConflicts)
	q.Contesting = all
	for _, c := range first {
		q.Conflicts = append(q.Conflicts, Conflict{c.Loser.Name, c.LoserKind.String(), c.Why()})
		q.say("%s claims %s too, as its %s, but does not get it: %s %s.", c.Loser.Name, row.Key, c.LoserKind.Words(),
			c.Winner.Name, c.Why())
	}
	if more := all - len(first); more > 0 {
		q.say("So do %s.", plural.Count(more, "other Service", "other Services"))
	}
}

// route returns the route that decides: the first whose sources the packet's is among.
func (q *question) route(row *lb.Frontend) lb.Route {
	for _, r := range row.Routes {
		if why := q.from(r.From); why != "" {
			if len(row.Routes) > 1 {
				q.say("%s, so the route for %s decides.", why, r.From)
			}
			if row.Kind != lb.ClusterIP && r.From != lb.Anywhere {
				q.say("It did not come through a load balancer that chose this node, so the traffic policy Local " +
					"does not apply.")
			}
			return r
		}
	}
	return lb.Route{From: lb.Anywhere, Do: lb.Drop} // a frontend that Check would refuse
}

// from says why the packet is of these sources, as the beginning of a sentence; "" if it is not.
func (q *question) from(from lb.From) string {
	a := q.packet.From.Addr()
	switch from {
	case lb.Pods:
		return q.pods()
	case lb.Host:
		if q.packet.Host {
			return a.String() + " is an address of this node"
		}
		return ""
	}
	return "No other route matches " + a.String()
}

// pods is from for pods.
func (q *question) pods() string {
	d, a, in := q.table.Node.Pods, q.packet.From.Addr(), q.packet.In
	switch {
	case d.Interface != "" && in == d.Interface:
		return "The packet comes in through " + in + ", the bridge of pods"
	case d.InterfacePrefix != "" && strings.HasPrefix(in, d.InterfacePrefix):
		return "The packet comes in through " + in + ", an interface of a pod"
	}
	for _, p := range d.Prefixes {
		if p.Contains(a) {
			return a.String() + " is a pod's address (" + p.String() + ")"
		}
	}
	if d.Interface+d.InterfacePrefix != "" && in == "" && !q.packet.Host {
		q.say("Packets of pods are recognized by their incoming interface. Without --in this packet counts as one " +
			"from elsewhere.")
	}
	return ""
}

// take answers by a route of the frontend.
func (q *question) take(row *lb.Frontend, r lb.Route) {
	q.Route = r.From.String()
	switch r.Do {
	case lb.Reject:
		q.Verdict = Reject
		q.say("No endpoint of the Service serves this port, so connections are rejected.")
		return
	case lb.Balance:
	default:
		q.Verdict = Drop
		if q.how.Served != nil {
			q.say("There is no such endpoint, so the packet is dropped.")
			return
		}
		policy := "external"
		if row.Kind == lb.ClusterIP {
			policy = "internal"
		}
		q.say("No endpoint on this node serves the port, and the Service's %s traffic policy is Local, so the packet "+
			"is dropped.", policy)
		return
	}
	q.Verdict, q.Set, q.Masquerade = Balance, r.To.ID.String(), r.Masq || q.how.Terminates
	q.balance(r.To)
	if row.Affinity > 0 {
		q.AffinitySeconds = int(row.Affinity.Seconds())
		q.say("Session affinity: a client keeps its backend for %s after its last new connection.", row.Affinity)
	}
}

// balance names the backends.
func (q *question) balance(set *lb.BackendSet) {
	n, draining := set.Backends.Len(), 0
	q.Backends = make([]Backend, n)
	for i := range n {
		b := set.Backends.At(i)
		q.Backends[i] = Backend{Address: b.Addr, Share: 1 / float64(n), Hairpin: q.hairpin(b)}
		if b.Draining {
			draining++
		}
	}
	where := ""
	if set.ID.Scope == lb.Local {
		where = " on this node, because the traffic policy is Local"
	}
	if n == 1 {
		q.say("It goes to the only backend%s.", where)
	} else {
		q.say("It goes to one of %d backends%s.", n, where)
	}
	if draining > 0 {
		q.say("They are terminating, and serve because no endpoint is ready.")
	}
	switch {
	case q.how.Terminates:
		q.say("The connection ends at the proxy, which opens another: the backend sees an address of this node.")
	case q.Masquerade:
		q.say("The packet is masqueraded: the backend sees an address of this node as its source, and replies " +
			"through this node.")
	default:
		q.say("The backend sees the client's own address.")
		if slices.ContainsFunc(q.Backends, func(b Backend) bool { return b.Hairpin }) {
			q.say("The client is one of the backends: its connection to itself is masqueraded.")
		}
	}
}

// hairpin reports whether the backend is the client itself, and would be masqueraded for that alone
// (SV-60).
func (q *question) hairpin(b lb.Backend) bool {
	return b.Addr.Addr() == q.packet.From.Addr() && !q.Masquerade && (b.Local || b.Unplaced || !q.how.HairpinsByNode ||
		q.isHere(b.Addr))
}

// isHere reports whether any Service says that an endpoint runs on this node, or not where: the
// kernel does not distinguish the Services.
func (q *question) isHere(a netip.AddrPort) bool {
	for f := range q.table.All() {
		for _, r := range f.Routes {
			if f.Key.Proto != q.packet.Proto || r.To == nil {
				continue
			}
			if b, ok := r.To.Backends.Find(a); ok && (b.Local || b.Unplaced) {
				return true
			}
		}
	}
	return false
}

// unknown answers for a packet without a frontend.
func (q *question) unknown() {
	to, what := q.packet.To.Addr(), target(q.packet)
	ping := q.packet.Proto == ICMPv4 || q.packet.Proto == ICMPv6
	kind := q.table.KindAt(to)
	network := slices.IndexFunc(q.table.Node.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(to) })
	held := kind != 0 && q.how.Holds && !q.packet.Here && // but not an API server's (TN-66)
		(kind == lb.ClusterIP || !slices.Contains(q.table.Node.APIServers, to))
	q.Verdict = Pass
	switch {
	case kind == 0 && network < 0:
		q.say("No Service has %s: the proxy lets the packet pass.", what)
	case held && ping:
		q.say("%s is a service address, which this node has in mode %s: it answers pings.", to, q.how.Name)
	case held:
		q.Verdict = Reject
		q.say("%s is a service address, which this node has in mode %s, but no Service has %s: the packet is rejected.",
			to, q.how.Name, what)
	case q.how.PassesUnknown:
		q.say("%s is a service address, but no Service has %s: mode %s lets it pass.", to, what, q.how.Name)
	case q.packet.Here:
		q.say("%s is an address of this node, and no Service has %s: a server of the node may answer.", to, what)
	case kind == lb.ClusterIP && ping:
		q.Verdict = Reject
		q.say("%s is a cluster IP, which does not answer pings: they are rejected.", to)
	case kind == lb.ClusterIP:
		q.Verdict = Reject
		q.say("%s is a cluster IP, but no Service has %s: the packet is rejected.", to, what)
	case network >= 0:
		q.Verdict = Drop
		q.say("%s is of the service network (%s), but no Service has %s: this node drops the packet.",
			to, q.table.Node.ServiceCIDRs[network], what)
	default:
		q.say("%s is the %s of a Service, but no Service has %s: the proxy lets it pass.", to, kind.Words(), what)
	}
}
