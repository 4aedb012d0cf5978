package nodetrace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// expected reports whether the table or the mode's state in the kernel sends the packet there.
func (w *walk) expected(to netip.AddrPort) bool {
	is := func(b trace.Backend) bool { return b.Address == to }
	k := w.q.Kernel
	switch w.q.Table.Verdict {
	case trace.Pass:
		return to == w.q.Packet.To
	case trace.Balance:
		return slices.ContainsFunc(w.q.Table.Backends, is) || to == w.q.Backend ||
			k != nil && (slices.ContainsFunc(k.Backends, is) || to == k.Affine)
	}
	return false
}

// foreign reports whether a rule of another program gave the packet its destination.
func (y way) foreign() bool {
	return y.translatedBy != nil && !strings.HasPrefix(y.translatedBy.Owner(), "kube-proxy")
}

// strayed reports a request that has ended at an address to which nothing of kube-proxy sends it.
// Connections that end at the proxy are not judged: it chooses its listeners itself.
func (w *walk) strayed(y way) stop {
	p := w.q.Packet
	if w.q.Table.Verdict == "" || w.proxies(y) && y.here && !y.foreign() || w.expected(y.To) ||
		p.Proto == trace.ICMPv4 || p.Proto == trace.ICMPv6 {
		return stop{}
	}
	s := stop{verdict: trace.Translated, stage: y.stage("prerouting"),
		by: fmt.Sprintf("the packet goes to %s, which is no backend", y.To), do: "nft list ruleset; iptables-save"}
	if w.own() {
		s.stage = y.stage("output")
	}
	switch {
	case y.To == p.To && w.q.Table.Verdict == trace.Balance:
		if s = w.notTranslated(y); y.here { // nothing listens there
			s.verdict = trace.Rejected
		}
	case y.To == p.To: // the table refuses it, and the kernel does not
		s.by = fmt.Sprintf("nothing in the kernel refuses the packet to %s", y.To)
		s.do = "kube-proxy diff"
	case y.translatedBy != nil:
		s.by, s.do = fmt.Sprintf("%s: to %s, which is no backend", y.translatedBy, y.To), ""
	}
	return s
}

// misled reports a reply that does not come to the client, or not from the address that it asked.
func (w *walk) misled(y way) stop {
	s := stop{verdict: trace.Dropped, stage: y.stage("postrouting"), do: "nft list ruleset; iptables-save"}
	same := func(a, b netip.AddrPort) bool {
		return a.Addr() == b.Addr() && (a.Port() == b.Port() || a.Port() == 0 || b.Port() == 0)
	}
	client, local := y.asked.From, w.q.Packet.Host || w.q.Mode.Terminates && !w.q.Mode.Holds
	switch {
	case w.q.Mode.Holds || y.bypass: // IPVS translates replies itself
		return stop{}
	case !same(y.To, client):
		s.by = fmt.Sprintf("the reply goes to %s, not to the client %s", y.To, client)
	case y.here && !local:
		s.by = fmt.Sprintf("the reply to the client %s ends at this node", client)
	case !same(y.From, y.asked.To):
		s.by = fmt.Sprintf("the client asked %s, and the reply comes from %s, which the client does not take",
			y.asked.To, y.From)
	default:
		return stop{}
	}
	if y.untrackedBy != nil {
		s.by += ": conntrack leaves it alone, because of " + y.untrackedBy.String()
	}
	return s
}

// refusal follows the error that a rule or a route sends to the client: the client learns nothing
// if that is stopped. s is the refusal of the packet y. What may stop the error is a doubt of y.
func (w *walk) refusal(y *way, s stop) stop {
	if s.verdict != trace.Rejected || y.reply || w.err != nil {
		return s
	}
	for _, r := range w.rules {
		if r.Users && !w.own() {
			y.doubtful("ip rule of priority %d, which selects by the user, for the error that refuses the packet",
				r.Priority)
		}
	}
	q := rtnl.Query{To: y.From.Addr(), From: w.errorSource(*y, s), Proto: byte(errorProto(*y, s))}
	switch reset := errorProto(*y, s) == lb.TCP; { // IPv6 has a source before the route
	case q.To.Is4() || q.From.IsValid():
	case reset:
		q.From = y.To.Addr()
	default: // unless the route has one, which a query does not show
		without := w.lookup(q)
		q.From = w.nearest(q.To)
		if r := w.lookup(q); (r.Errno == 0) != (without.Errno == 0) {
			y.doubtful("whether the error that refuses the packet has its source %s before its route is chosen", q.From)
		}
	}
	r := w.lookup(q)
	if q.From.IsValid() {
		r.Source = q.From
	}
	if e := noRoute(r, y.From.Addr(), false, "error: route"); e.by != "" {
		return w.unheard(s, e.by)
	}
	e := w.errorOf(*y, s, r)
	out := w.link(r.Out)
	if !r.Here() {
		by := w.secured(xfrmOut, &e, out).by
		e.reply = true
		by = cmp.Or(by, w.undeliverable(&e, r, out).by)
		y.doubts = append(slices.Clip(y.doubts), e.doubts...)
		if by != "" {
			return w.unheard(s, by)
		}
		w.elsewhere(y, r, "the error that refuses the packet")
	}
	var translatedBy *hooks.Rule
	path := []hooks.Hook{hooks.Output, hooks.Postrouting}
	if r.Here() { // through the loopback device
		e.Out = "lo"
		path = append(path, hooks.Prerouting, hooks.Input)
	}
	for _, h := range path {
		if h == hooks.Prerouting {
			e.In, e.Out = "lo", ""
		}
		ways, err := w.pass(h, e.Packet)
		if err != nil {
			w.err = fmt.Errorf("follow an error through %s: %w", h, err)
			return s
		}
		by, lost := "", 0.0
		for _, x := range ways {
			if x.Verdict == "" { // conntrack gives it the address that the client asked
				e.From, e.To, e.Mark = x.From, x.To, x.Mark
				translatedBy = cmp.Or(x.TranslatedBy, translatedBy)
			}
			for _, rule := range x.NotEvaluated {
				y.doubtful("%s", rule)
			}
			if x.Verdict != "" && x.By != nil {
				by, lost = x.By.String(), lost+x.Share
			}
		}
		switch { // the client of TCP repeats its packet
		case lost > 0.999:
			return w.unheard(s, by)
		case lost > 0:
			y.doubtful("%s, which stops some of the errors that refuse the packet", by)
		}
	}
	if e.To.Addr() != y.From.Addr() && translatedBy != nil {
		return w.unheard(s, fmt.Sprintf("%s: to %s", translatedBy, e.To.Addr()))
	}
	return s
}

// nearest is the address of the node from which the kernel sends a packet of IPv6 of its own, such
// as an error: one of the interface that the client's came in through, if it has any, and of those
// the one that has the longest prefix in common with the destination (RFC 6724); invalid without
// any.
func (w *walk) nearest(to netip.Addr) (best netip.Addr) {
	most := -1
	for _, l := range w.links {
		for _, a := range w.addressesOf(l) {
			rank := to.BitLen()
			for rank > 0 && !netip.PrefixFrom(to, rank).Masked().Contains(a.Addr) {
				rank--
			}
			if len(w.in) > 0 && w.in[0] == l.Index {
				rank += 1 + to.BitLen()
			}
			if !a.Addr.IsLoopback() && rank > most {
				best, most = a.Addr, rank
			}
		}
	}
	return best
}

// errorProto is the protocol of the error by which the client learns of a refusal.
func errorProto(y way, s stop) lb.Proto {
	switch {
	case y.Proto == lb.TCP && (strings.Contains(s.by, "tcp reset") || strings.Contains(s.by, "tcp-reset")):
		return lb.TCP
	case y.From.Addr().Is6():
		return trace.ICMPv6
	}
	return trace.ICMPv4
}

// errorSource is the source that an error has before its route: the address that the client asked,
// if that is one of the node. ICMP of IPv4 knows that by the packet's route, which a rule at
// prerouting comes before.
func (w *walk) errorSource(y way, s stop) netip.Addr {
	if s.stage == hooks.Prerouting.String() && errorProto(y, s) == trace.ICMPv4 {
		return netip.Addr{}
	}
	return w.local(y.To.Addr())
}

// errorOf is the packet by which the client learns of a refusal, on the route r.
func (w *walk) errorOf(y way, s stop, r rtnl.Route) way {
	const networkControl = 0xc0 // the precedence of errors of IPv4 (RFC 1812, 4.3.2.5)
	from := r.Source
	if here := w.errorSource(y, s); here.IsValid() {
		from = here
	}
	e := hooks.Packet{Proto: errorProto(y, s), From: netip.AddrPortFrom(from, 0), TOS: networkControl,
		To: netip.AddrPortFrom(y.From.Addr(), unreachable4), Out: w.link(r.Out).Name}
	if s.expired {
		e.To = netip.AddrPortFrom(y.From.Addr(), expired4)
	}
	switch e.Proto {
	case lb.TCP:
		e.From, e.To, e.TOS = y.To, y.From, 0
	case trace.ICMPv6:
		e.To, e.TOS = netip.AddrPortFrom(y.From.Addr(), unreachable6), 0
		if s.expired {
			e.To = netip.AddrPortFrom(y.From.Addr(), expired6)
		}
	}
	if !e.From.Addr().IsValid() {
		e.From = netip.AddrPortFrom(y.To.Addr(), 0)
	}
	e.Flow = y.Flow
	e.Flow.State, e.Flow.Reply, e.Flow.Offloaded = hooks.Related, true, false
	return way{Packet: e, asked: y.asked}
}

// elsewhere doubts a way out to the client through a router, if the client is on a link of another
// interface, or the route to it leads through one: whether the router passes it on, this node does
// not know. what leaves there.
func (w *walk) elsewhere(y *way, r rtnl.Route, what string) {
	if w.own() || !w.onLink && w.arrives == "" || len(w.in) == 0 || w.in[0] == r.Out || !r.Gateway.IsValid() {
		return
	}
	y.doubtful("%s leaves through %s to %s, though %s is behind %s: whether it arrives is not known",
		what, w.link(r.Out).Name, r.Gateway, y.asked.From.Addr(), w.link(w.in[0]).Name)
}

// The type and the code of the errors "port unreachable" and "time exceeded", as a port.
const (
	unreachable4 = 3<<8 | 3
	unreachable6 = 1<<8 | 4
	expired4     = 11 << 8
	expired6     = 3 << 8
)

// unheard is a refusal that does not reach the client.
func (w *walk) unheard(s stop, by string) stop {
	s.verdict = trace.Dropped
	w.warn("The error that refuses the packet does not reach the client: %s.", by)
	return s
}

// onewayReply judges a reply that need not pass this node.
func (w *walk) onewayReply(y way) {
	switch {
	case y.To == y.asked.To: // nothing was translated
	case y.To.Addr() == y.From.Addr():
		w.doubt("the client is its own backend, and is not masqueraded: it answers itself")
	default:
		w.doubt("the reply of %s to %s need not pass this node: if it does not, the client sees another address than "+
			"the one it asked", y.To, y.From.Addr())
	}
}

// byPort notes policy rules that select by what is not known of the packet.
func (w *walk) byPort(y way) {
	if y.From.Port() != 0 && !w.own() {
		return
	}
	for _, r := range w.rules {
		switch {
		case r.SourcePorts && y.From.Port() == 0:
			w.doubt("ip rule of priority %d, which selects by the source port", r.Priority)
		case r.Users && w.own() && !y.reply:
			w.doubt("ip rule of priority %d, which selects by the user of the program", r.Priority)
		}
	}
}

// local returns the address for a query of a packet that this node sends; invalid if that is not an
// address of the node.
func (w *walk) local(a netip.Addr) netip.Addr {
	if r := w.lookup(rtnl.Query{To: a}); a.IsValid() && r.Type == unix.RTN_LOCAL {
		return a
	}
	return netip.Addr{}
}
