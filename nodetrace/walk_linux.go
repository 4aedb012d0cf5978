package nodetrace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	rtnl "kube-proxy/internal/netlink/route"
	"kube-proxy/lb"
	"kube-proxy/nodetrace/internal/hooks"
	"kube-proxy/trace"
)

// facts are what the kernel says. Tests make them of values.
type facts struct {
	links      []rtnl.Link
	neighbours []rtnl.Neighbour
	route      func(rtnl.Query) (rtnl.Route, error)
	// hops returns how many next hops the route of a packet has.
	hops func(rtnl.Query) (int, error)
	pass func(hooks.Hook, hooks.Packet) ([]hooks.Way, error)
	// sysctl returns the value of a setting, by its path below net; "" without one.
	sysctl func(path string) string
	// conntrack returns how many packets conntrack has dropped, and how many connections it has
	// evicted, because its table was full.
	conntrack func() (dropped, evicted uint64)
	ipsec     ipsec
	ports     []rtnl.Port // of bridges, and what is behind them
	stations  map[[6]byte]int32
	rules     []rtnl.Rule                    // policy rules that select by what may not be known
	addresses func() ([]rtnl.Address, error) // of the node, in the packet's family
}

// walk is one packet on its way. It collects where the ways end.
type walk struct {
	facts
	q        Question
	ends     []end
	warnings []string
	doubts   []string // of the node, not of one way
	in, out  []int32  // interfaces used
	arrives  string   // how the packet is assumed to arrive
	onLink   bool     // the client is a neighbour on the interface that its packets come in through
	lost     string   // why that interface is not known, though it matters
	listens  bool     // the kernel looks for a socket of this node
	err      error
}

// way is one way of the packet, with its share of new connections.
type way struct {
	hooks.Packet
	share   float64
	backend netip.AddrPort
	masq    bool
	here    bool // a socket of this node receives it
	toHere  bool // one received the request
	reply   bool
	later   bool // next packets of the connection
	proxys  bool // of a connection that the proxy opens to the backend
	// asked is the connection as its client sees it. bypass: the reply need not pass this node.
	asked  hooks.Tuple
	bypass bool
	// translatedBy and untrackedBy are the rules that did so.
	translatedBy, untrackedBy *hooks.Rule
	steps                     []trace.Step
	doubts                    []doubt
}

// doubt is something on a way that was not evaluated. verdict is the end that it may give the
// packet; "" if that is unknown.
type doubt struct {
	what    string
	verdict trace.NodeVerdict
}

// stop is an obstacle. The zero stop is none.
type stop struct {
	verdict trace.NodeVerdict
	stage   string
	by, do  string
	own     bool
	expired bool // the TTL has ended, which the error says
}

type end struct {
	way
	stop
}

// maxWays bounds the ways that are followed after translation: there is one for each backend.
const maxWays = 64

// follow walks there and back.
func (w *walk) follow() {
	p := w.q.Packet
	orig := hooks.Tuple{From: p.From, To: p.To}
	start := way{share: 1, asked: orig,
		Packet: hooks.Packet{Proto: p.Proto, From: p.From, To: p.To, Flow: hooks.Flow{Orig: orig}}}
	if w.q.Backend.IsValid() {
		start.Flow.State, start.Flow.Offloaded, start.Flow.Mark = hooks.Established, w.q.Offloaded, w.q.Mark
		if !w.q.Mode.Holds { // IPVS itself translates its connections
			start.Flow.Reverse = hooks.Tuple{From: w.q.Backend, To: w.q.Sees}
		}
	} else if s, full := w.conntrackFull(); full {
		w.stop(start, s)
		return
	}
	if w.own() && !w.q.Mode.Holds && !p.Unbound {
		if src := w.lookup(start.query()).Source; src.IsValid() && src != p.From.Addr() {
			w.warn("The source %s is assumed: a socket that is not bound to it sends from %s.", p.From.Addr(), src)
		}
	}
	direct := !w.lookup(rtnl.Query{To: p.From.Addr(), Proto: byte(p.Proto)}).Gateway.IsValid()
	if k := w.q.Kernel; k != nil && k.Perhaps && (w.q.ClientHere || direct) {
		start.doubts = []doubt{{verdict: trace.Delivered, what: fmt.Sprintf("whether %[1]s is a pod of this node, "+
			"whose socket an eBPF program connects: see --cluster-cidr, and ip route get %[1]s", p.From.Addr())}}
	}
	for _, x := range w.connected(start) {
		if p.Unbound && w.own() && !w.q.Mode.Holds {
			if s := w.bind(&x); s.by != "" {
				w.stop(x, s)
				continue
			}
		}
		for _, y := range w.request(x) {
			for _, z := range w.proxied(y) {
				if s := w.strayed(z); s.by != "" {
					w.stop(z, s)
					continue
				}
				for _, answered := range w.answered(z) {
					if s := w.misled(answered); s.by != "" {
						w.stop(answered, s)
						continue
					}
					for _, done := range w.continued(answered) {
						w.ends = append(w.ends, end{way: done})
					}
				}
			}
		}
	}
}

// bind gives the packet of a socket that is not bound the source that the kernel chooses, by a
// route that it looks up without one. If it finds none, it looks again with IPv6, from the nearest
// address.
func (w *walk) bind(y *way) stop {
	r := w.lookup(y.query())
	switch s := noRoute(r, y.To.Addr(), false, "route"); {
	case s.by != "" && y.To.Addr().Is4():
		s.verdict = trace.Rejected
		return s
	case s.by != "":
		r.Source = w.nearest(y.To.Addr())
	}
	if r.Source.IsValid() {
		y.From = netip.AddrPortFrom(r.Source, y.From.Port())
		y.asked.From, y.Flow.Orig.From = y.From, y.From
	}
	return stop{}
}

// connected gives the packet of a socket that a program connects the destinations that it gets so.
// A pod that is its own backend sends nothing to this node.
func (w *walk) connected(y way) (all []way) {
	k := w.q.Kernel
	if k == nil || !k.Connected || y.Flow.State == hooks.Established {
		return []way{y}
	}
	if k.Verdict == trace.Reject {
		w.stop(y, stop{verdict: trace.Rejected, stage: "socket", own: w.q.Table.Verdict == trace.Reject,
			by: "an eBPF program of kube-proxy: connect() fails with ECONNREFUSED"})
		return nil
	}
	backends := k.Backends
	if k.Affine.IsValid() {
		backends = []trace.Backend{{Address: k.Affine, Share: 1}}
	}
	for _, b := range w.bounded(backends) {
		z := y
		z.To, z.backend, z.share, z.Flow.Orig.To = b.Address, b.Address, b.Share, b.Address
		z.asked.To = b.Address
		src := w.lookup(rtnl.Query{To: b.Address.Addr(), Proto: byte(y.Proto)}).Source
		if w.own() && z.From.Addr().IsLoopback() && src.IsValid() { // a socket that is not bound
			z.From = netip.AddrPortFrom(src, z.From.Port())
			z.asked.From, z.Flow.Orig.From = z.From, z.From
		}
		z.note("socket", "to %s, by an eBPF program of kube-proxy", b.Address)
		if z.To.Addr() == z.From.Addr() && !w.own() {
			w.ends = append(w.ends, end{way: z})
			continue
		}
		all = append(all, z)
	}
	return all
}

func (w *walk) own() bool { return w.q.Packet.Host && w.q.Packet.In == "" }

// request takes the packet to where it is delivered.
func (w *walk) request(y way) []way {
	if w.own() {
		return w.send(y)
	}
	in, s := w.comesIn()
	if s.by != "" {
		w.stop(y, s)
		return nil
	}
	if w.arrives != "" && !y.later {
		y.note("device", "%s", w.arrives)
	}
	if w.lost != "" && !y.later {
		y.doubtful("%s", w.lost)
	}
	w.answersARP(in)
	return w.receive(y, in)
}

// receive takes a packet that comes in through an interface.
func (w *walk) receive(y way, in rtnl.Link) (all []way) {
	y.In, y.Out, y.Port = in.Name, "", ""
	y.Calls = in.Kind == "bridge" && w.number("bridge/"+w.bridgeCalls(y.To.Addr())) != 0
	if port := w.q.Packet.In; !y.reply && port != in.Name {
		y.Port = port
	}
	if p, ok := w.behind(in, y.From.Addr()); ok && y.Port == "" {
		y.Port = w.link(p.Link).Name
	}
	w.in = append(w.in, in.Index)
	s := down(in)
	if s.by == "" {
		s = w.withoutIPv6(y, in)
	}
	if s.by != "" {
		w.stop(y, s)
		return nil
	}
	w.past(&y, in)
	for _, y := range w.hook(hooks.Prerouting, y) {
		q := y.query()
		q.From, q.FromPort, q.In = y.From.Addr(), y.From.Port(), in.Index
		w.byPort(y)
		r := w.lookup(q)
		switch s := w.refused(r, y, in); {
		case s.by != "":
			s = w.refusal(&y, s)
			w.stop(y, s)
		case r.Here():
			y.note("route", "to this node")
			all = append(all, w.arrive(y)...)
		default:
			w.guessed(&y, q, r)
			all = append(all, w.forward(y, r)...)
		}
	}
	return all
}

// fewHops is a TTL that may not suffice.
const fewHops = 16

// Priorities of IPVS at the hooks input and output (ip_vs_core.c).
const (
	ipvsInput  = 99
	ipvsOutput = -98
)

// byIPVS reports whether IPVS takes a packet that is for this node.
func (w *walk) byIPVS(y way) bool {
	return w.q.Mode.Holds && !y.reply && !y.backend.IsValid() && y.To == w.q.Packet.To &&
		w.q.Table.Verdict == trace.Balance && len(w.q.Table.Backends) > 0
}

// ofIPVS is the query for the route of a packet that IPVS sends: without a protocol, which a query
// cannot leave out. That of pings is the one that policy rules select least.
func ofIPVS(to netip.Addr) rtnl.Query {
	if to.Is6() {
		return rtnl.Query{To: to, Proto: byte(trace.ICMPv6)}
	}
	return rtnl.Query{To: to, Proto: byte(trace.ICMPv4)}
}

// fromIPVS reports whether IPVS sends a packet to a backend.
func (w *walk) fromIPVS(y way) bool { return w.q.Mode.Holds && !y.reply && y.backend.IsValid() }

// arrive takes a packet to a socket of this node, or to IPVS.
func (w *walk) arrive(y way) (all []way) {
	if w.byIPVS(y) {
		y.Before = ipvsInput
		if y.Flow.State == hooks.Untracked {
			y.doubtful("IPVS takes a packet that a rule keeps out of conntrack")
		}
	}
	w.listens = w.listens || !w.byIPVS(y) && (y.Flow.State == hooks.New || y.Proto == lb.UDP)
	for _, y := range w.hook(hooks.Input, y) {
		if s := w.secured(xfrmIn, &y, w.named(y.In)); s.by != "" && !w.byIPVS(y) {
			w.stop(y, s)
			continue
		}
		y.here = true
		y.toHere = y.toHere || !y.reply
		all = append(all, y)
	}
	return all
}

// forward takes a packet to another interface.
func (w *walk) forward(y way, r rtnl.Route) (all []way) {
	out := w.link(r.Out)
	y.Out = out.Name
	y.note("route", "%s", routeText(r, out))
	checks := []stop{w.untranslated(y), w.secured(xfrmForward, &y, w.named(y.In)), w.secured(xfrmOut, &y, out)}
	for _, s := range checks {
		if s.by != "" {
			w.stop(y, s)
			return nil
		}
	}
	w.compareMTU(w.named(y.In), out, r)
	switch y.TTL { // 0 is unknown, and lasts
	case 0:
	case 1:
		w.stop(y, w.refusal(&y, stop{verdict: trace.Rejected, stage: y.stage("route"), expired: true,
			by: "a rule has set the packet's TTL to 1, so this node does not forward it",
			do: "nft list ruleset; iptables-save -t mangle"}))
		return nil
	default:
		y.TTL--
	}
	for _, y := range w.hook(hooks.Forward, y) {
		if w.q.Mode.Holds && y.reply && y.backend.IsValid() { // IPVS gives it the Service's address, and a route
			q := y.query()
			q.From, q.FromPort = w.local(y.asked.To.Addr()), y.asked.To.Port()
			again := w.lookup(q)
			s := noRoute(again, y.To.Addr(), false, y.stage("route"))
			if s.by != "" {
				w.stop(y, s)
				continue
			}
			r = again
		}
		all = append(all, w.leave(y, r)...)
	}
	return all
}

// leave takes a packet out of the node.
func (w *walk) leave(y way, r rtnl.Route) (all []way) {
	out := w.link(r.Out)
	y.Out = out.Name
	w.out = append(w.out, out.Index)
	if r.Encap != 0 {
		w.doubt("encapsulation by the route to %s through %s", y.To.Addr(), out.Name)
	}
	w.otherRouter(y, r)
	from := y.From
	for _, y := range w.masqueraded(y) {
		y.In = ""
		if y.reply {
			w.elsewhere(&y, r, "the reply")
		}
		if y.TTL != 0 && y.TTL < fewHops && r.Gateway.IsValid() {
			w.doubt("a rule has set the packet's TTL, which is %d when it leaves: the way may be longer", y.TTL)
		}
		s := w.undeliverable(&y, r, out)
		if s.by == "" && y.From != from {
			s = w.secured(xfrmOut, &y, out)
		}
		if s.by != "" {
			w.stop(y, s)
			continue
		}
		all = append(all, y)
	}
	return all
}

// masqueraded passes postrouting, and gives masqueraded packets their source.
func (w *walk) masqueraded(y way) []way {
	all := w.hook(hooks.Postrouting, y)
	for i := range all {
		if y := &all[i]; y.masq && !y.reply && y.From.Addr() == y.Flow.Orig.From.Addr() {
			if own := w.lookup(y.query()); own.Source.IsValid() {
				y.From = netip.AddrPortFrom(own.Source, y.From.Port())
			}
		}
	}
	return all
}

// send takes a packet of this node. IPVS takes its own, and looks routes up by the address alone.
func (w *walk) send(y way) (all []way) {
	q := w.sent(y)
	if w.fromIPVS(y) {
		q = ofIPVS(q.To)
	}
	w.byPort(y)
	r := w.lookup(q)
	s := noRoute(r, y.To.Addr(), false, y.stage("route"))
	if s.by == "" && !w.fromIPVS(y) {
		s = w.secured(xfrmOut, &y, w.link(r.Out))
	}
	if s.by != "" {
		// The program's call fails; no client sees that of a reply.
		s.verdict = map[bool]trace.NodeVerdict{false: trace.Rejected, true: trace.Dropped}[y.reply]
		if w.fromIPVS(y) {
			asked := y
			asked.To = y.asked.To
			s = w.refusal(&asked, s)
			y.doubts = asked.doubts
		}
		w.stop(y, s)
		return nil
	}
	y.In, y.Port, y.Out = "", "", w.link(r.Out).Name
	y.note("route", "%s", routeText(r, w.link(r.Out)))
	if w.byIPVS(y) {
		y.Before = ipvsOutput
	}
	for _, after := range w.hook(hooks.Output, y) {
		r := w.rerouted(y, &after, r)
		s := noRoute(r, after.To.Addr(), false, y.stage("route"))
		if s.by == "" && (after.To != y.To || w.fromIPVS(y)) {
			s = w.secured(xfrmOut, &after, w.link(r.Out))
			s.verdict = trace.Rejected
		}
		if s.by != "" {
			if y.Proto != lb.UDP || w.fromIPVS(y) { // the kernel repeats the first packet
				s.verdict = trace.Dropped
			}
			w.stop(after, s)
		} else if w.byIPVS(after) {
			after.here = true
			all = append(all, after)
		} else if r.Here() {
			all = append(all, w.loop(after)...)
		} else {
			w.guessed(&after, w.sent(after), r)
			all = append(all, w.leave(after, r)...)
		}
	}
	return all
}

// rerouted looks the route up again if the hook changed what it depends on. The kernel does so for
// all packets of IPVS, because their destination is not that of conntrack.
func (w *walk) rerouted(before way, after *way, was rtnl.Route) rtnl.Route {
	if before.To.Addr() == after.To.Addr() && before.Mark == after.Mark && !w.fromIPVS(before) {
		return was
	}
	r := w.lookup(w.sent(*after))
	if text := routeText(r, w.link(r.Out)); r.Errno == 0 && text != routeText(was, w.link(was.Out)) {
		after.note("route", "%s", text)
	}
	return r
}

// loop takes a packet from this node to this node.
func (w *walk) loop(y way) (all []way) {
	y.Out = "lo"
	w.in, w.out = append(w.in, rtnl.Loopback), append(w.out, rtnl.Loopback)
	if s := w.withoutIPv6(y, w.link(rtnl.Loopback)); s.by != "" {
		w.stop(y, s)
		return nil
	}
	for _, y := range w.masqueraded(y) {
		y.In, y.Out, y.Flow.Bound = "lo", "", true
		for _, y := range w.hook(hooks.Prerouting, y) {
			all = append(all, w.arrive(y)...)
		}
	}
	return all
}

// proxies reports whether IPVS or the proxy itself takes a packet that is delivered to this node.
// Rules do not redirect a packet to the proxy that conntrack does not know.
func (w *walk) proxies(y way) bool {
	m, to := w.q.Mode, w.q.Packet.To
	return m.Holds || m.Terminates && (y.Flow.State != hooks.Untracked || y.To != to) ||
		m.LocalhostProxy && to.Addr().IsLoopback()
}

// proxied follows a packet that IPVS or the proxy itself received to the backends.
func (w *walk) proxied(y way) (all []way) {
	m, t := w.q.Mode, w.q.Table
	switch {
	case !y.here || !w.proxies(y) || y.foreign() || y.backend.IsValid() && !m.Terminates:
		return []way{y}
	case t.Verdict == trace.Reject || t.Verdict == trace.Drop:
		s := stop{verdict: verdicts[t.Verdict], stage: "proxy", by: "kube-proxy", own: true}
		if m.Holds { // IPVS sends the error
			s = w.refusal(&y, s)
		}
		w.stop(y, s)
		return nil
	case t.Verdict != trace.Balance || len(t.Backends) == 0:
		return []way{y}
	}
	if !m.Holds { // the client has a connection of its own, with the proxy
		back := w.answered(y)
		if len(back) == 0 {
			return nil
		}
		if s := w.misled(back[0]); s.by != "" {
			w.stop(back[0], s)
			return nil
		}
		next := w.continued(back[0])
		if len(next) == 0 {
			return nil
		}
		y.steps, y.doubts = next[0].steps, next[0].doubts
	}
	backends := w.bounded(t.Backends)
	// The proxy leaves the backend that a client stays with if it notices that it is not reached.
	if k := w.q.Kernel; m.Terminates && k != nil && k.Affine.IsValid() {
		ended := len(w.ends)
		all = w.toBackends(y, []trace.Backend{{Address: k.Affine, Share: 1}})
		if len(all) > 0 || slices.ContainsFunc(w.ends[ended:], func(e end) bool { return !w.notices(e.stop) }) {
			return all
		}
		w.ends = w.ends[:ended]
	}
	if m.Holds && w.q.Backend.IsValid() {
		backends = []trace.Backend{{Address: w.q.Backend, Share: 1}}
	}
	return w.toBackends(y, backends)
}

// toBackends sends what IPVS or the proxy received to backends.
func (w *walk) toBackends(y way, backends []trace.Backend) (all []way) {
	for _, b := range backends {
		z := y
		z.here, z.To, z.backend, z.share, z.steps = false, b.Address, b.Address, y.share*b.Share, slices.Clone(y.steps)
		z.Flow = hooks.Flow{Orig: y.Flow.Orig, Mark: y.Flow.Mark, Label: y.Flow.Label, IPVS: w.q.Mode.Holds}
		if !w.q.Mode.Holds {
			z.From, z.Mark, z.proxys = netip.AddrPort{}, w.q.Mode.Mark, true
			z.Flow = hooks.Flow{Orig: hooks.Tuple{To: z.To}}
			z.asked = z.Flow.Orig
			if s := w.bind(&z); s.by != "" {
				w.stop(z, s)
				continue
			}
		}
		all = append(all, w.send(z)...)
	}
	return all
}

func (w *walk) bounded(all []trace.Backend) []trace.Backend {
	if len(all) > maxWays {
		w.warn("%d of %d backends were followed", maxWays, len(all))
		return all[:maxWays]
	}
	return all
}

// answered takes the reply of what received the packet back.
func (w *walk) answered(y way) []way {
	z := y
	z.reply, z.here, z.Mark, z.From, z.To = true, false, 0, y.To, y.From
	z.Flow = hooks.Flow{State: hooks.Established, Reply: true,
		Orig: y.Flow.Orig, Reverse: hooks.Tuple{From: y.To, To: y.From}, Offloaded: y.Flow.Offloaded,
		Mark: y.Flow.Mark, Label: y.Flow.Label, IPVS: y.Flow.IPVS, NewPort: y.Flow.NewPort,
		Later: y.later}
	z.TOS, z.TTL = 0, 0
	if y.Flow.State == hooks.Untracked { // conntrack does not know what it answers
		z.Flow = hooks.Flow{Orig: hooks.Tuple{From: z.From, To: z.To}}
		if y.Proto == lb.TCP {
			z.Flow.State = hooks.Invalid
		}
	}
	switch in := w.named(y.Out); {
	case y.here:
		return w.send(z)
	case w.bypasses(y):
		w.onewayReply(y)
		z.bypass = true
		z.note("route", "the reply need not pass this node")
		return []way{z}
	default:
		w.directBridge(y, &z, in)
		return w.receive(z, in)
	}
}

// continued takes the next packets to what answered: they meet no rules of nat, and may have
// another mark. If they arrive, it keeps the steps of the first packet and the reply.
func (w *walk) continued(y way) (all []way) {
	if w.q.Mode.Holds || w.q.Backend.IsValid() {
		return []way{y}
	}
	z := y
	z.reply, z.later, z.here, z.Mark, z.From, z.To = false, true, false, 0, y.Flow.Orig.From, y.Flow.Orig.To
	z.Flow = hooks.Flow{State: hooks.Established, Orig: y.Flow.Orig, Reverse: y.Flow.Reverse, Mark: y.Flow.Mark,
		Label: y.Flow.Label, NewPort: y.Flow.NewPort}
	z.TOS, z.TTL = 0, 0
	if untracked := y.Flow.State != hooks.Established; untracked {
		z.From, z.To = y.asked.From, y.asked.To
		z.Flow = hooks.Flow{Orig: y.asked}
	}
	next := w.request
	if y.proxys {
		z.Mark, next = w.q.Mode.Mark, w.send
	}
	for _, z := range next(z) {
		back := []way{z}
		if y.Proto == lb.TCP && !y.bypass { // rules may match a handshake alone
			back = w.answered(z)
		}
		if len(back) > 0 {
			z.steps, z.doubts = y.steps, back[0].doubts
			all = append(all, z)
		}
	}
	return all
}

// bypasses reports whether the packet left through the interface it came in through, or from one
// uplink to another, with its source: another machine then replies to the client directly.
func (w *walk) bypasses(y way) bool {
	if y.masq || w.own() || len(w.in) == 0 || w.in[0] == 0 || w.local(y.From.Addr()).IsValid() {
		return false
	}
	out := w.named(y.Out)
	return out.Kind != "bridge" && (out.Index == w.in[0] || w.uplink(out) && w.uplink(w.link(w.in[0])))
}

// hook takes a packet through a hook.
func (w *walk) hook(h hooks.Hook, y way) (all []way) {
	if w.err != nil {
		return nil
	}
	ways, err := w.pass(h, y.Packet)
	if err != nil {
		w.err = fmt.Errorf("follow the packet through %s: %w", h, err)
		return nil
	}
	if len(ways) > maxWays {
		slices.SortStableFunc(ways, func(a, b hooks.Way) int { return cmp.Compare(b.Share, a.Share) })
		w.warn("%d of %d ways were followed at %s", maxWays, len(ways), h)
		ways = ways[:maxWays]
	}
	for _, x := range ways {
		z := y
		z.Packet, z.share, z.masq = x.Packet, y.share*x.Share, y.masq || x.Masqueraded
		z.steps, z.doubts = slices.Clone(y.steps), slices.Clone(y.doubts)
		if x.TranslatedBy != nil {
			z.translatedBy = x.TranslatedBy
		}
		here := w.redirect(&z)
		if !y.reply && (x.Translated || z.To != y.To) {
			z.backend = z.To
		}
		if x.UntrackedBy != nil {
			z.untrackedBy = x.UntrackedBy
		}
		for i, r := range x.NotEvaluated {
			d := doubt{what: r.String()}
			if i < len(x.If) {
				d.verdict = verdicts[x.If[i]]
			}
			z.doubts = append(z.doubts, d)
		}
		if x.Verdict == "" && here.by != "" {
			w.stop(z, here)
			continue
		}
		if x.Verdict == "" {
			x.To = z.To
			z.note(h.String(), "%s", changes(y.Packet, x))
			all = append(all, z)
			continue
		}
		s := stop{verdict: verdicts[x.Verdict], stage: y.stage(h.String()), by: "a rule"}
		if x.By != nil {
			s.by, s.own = x.By.String(), strings.HasPrefix(x.By.Owner(), "kube-proxy") && x.Verdict == w.q.Table.Verdict
		}
		s = w.refusal(&z, s)
		w.stop(z, s)
	}
	return all
}

// redirect gives a packet that a rule redirects to this node the first address of the interface
// that it came in through, as the kernel does. Without one, it is dropped.
func (w *walk) redirect(y *way) stop {
	if !y.To.Addr().IsUnspecified() {
		return stop{}
	}
	in := w.named(y.In)
	all := w.addressesOf(in)
	if own := w.linkLocal(in); len(all) == 0 && y.To.Addr().Is6() && own.IsValid() {
		all = append(all, rtnl.Address{Addr: own})
	}
	if len(all) == 0 {
		s := stop{verdict: trace.Dropped, stage: y.stage("prerouting"),
			by: fmt.Sprintf("a redirection to interface %s, which has no address", in.Name), do: "ip address"}
		if y.translatedBy != nil {
			s.by = fmt.Sprintf("%s: interface %s has no address", y.translatedBy, in.Name)
		}
		return s
	}
	y.To = netip.AddrPortFrom(all[0].Addr, y.To.Port())
	y.Flow.Reverse.From = y.To
	return stop{}
}

var verdicts = map[trace.Verdict]trace.NodeVerdict{trace.Drop: trace.Dropped, trace.Reject: trace.Rejected}

// changes says what a hook did to a packet that goes on.
func changes(before hooks.Packet, x hooks.Way) string {
	text := "passes"
	if x.To != before.To {
		text = "to " + x.To.String()
	}
	if x.From != before.From {
		text += ", from " + x.From.String()
	}
	if x.Masqueraded {
		text += ", masqueraded"
	}
	if x.Mark != before.Mark {
		text += fmt.Sprintf(", mark 0x%x", x.Mark)
	}
	return text
}

// nextPackets begins the names of stages of a connection's next packets.
const nextPackets = "next packets: "

// stage is the name of a stage of this way.
func (y way) stage(name string) string {
	if y.reply {
		name = "reply: " + name
	}
	if y.later {
		name = nextPackets + name
	}
	return name
}

// note adds a step.
func (y *way) note(stage, format string, args ...any) {
	y.steps = append(slices.Clip(y.steps), trace.Step{
		Backend: y.backend, Reply: y.reply, Stage: stage, Text: fmt.Sprintf(format, args...),
	})
}

// stop ends a way at an obstacle.
func (w *walk) stop(y way, s stop) {
	if y.reply && s.verdict == trace.Rejected { // the error goes to the backend, and not to the client
		s.verdict = trace.Dropped
	}
	y.note(s.stage, "%s by %s", s.verdict, s.by)
	w.ends = append(w.ends, end{y, s})
}

// doubtful notes something on the way that may give the packet any other end.
func (y *way) doubtful(format string, args ...any) {
	y.doubts = append(slices.Clip(y.doubts), doubt{what: fmt.Sprintf(format, args...)})
}

// warn notes a sentence once.
func (w *walk) warn(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(w.warnings, s) {
		w.warnings = append(w.warnings, s)
	}
}

// doubt names something that was not evaluated, once.
func (w *walk) doubt(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(w.doubts, s) {
		w.doubts = append(w.doubts, s)
	}
}

// query is for the route of the packet, as of one of this node.
func (y way) query() rtnl.Query {
	return rtnl.Query{To: y.To.Addr(), Mark: y.Mark, Proto: byte(y.Proto), ToPort: y.To.Port()}
}

// sent is the query for a packet that this node sends from an address of its own.
func (w *walk) sent(y way) rtnl.Query {
	q := y.query()
	q.From, q.FromPort = w.local(y.From.Addr()), y.From.Port()
	return q
}

func (w *walk) lookup(q rtnl.Query) rtnl.Route {
	r, err := w.route(q)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("look up the route to %s: %w", q.To, err)
	}
	return r
}

func (w *walk) link(index int32) rtnl.Link {
	if i := slices.IndexFunc(w.links, func(l rtnl.Link) bool { return l.Index == index }); i >= 0 {
		return w.links[i]
	}
	return rtnl.Link{Index: index, Name: fmt.Sprintf("interface number %d", index)}
}

func (w *walk) named(name string) rtnl.Link {
	if i := slices.IndexFunc(w.links, func(l rtnl.Link) bool { return l.Name == name }); i >= 0 {
		return w.links[i]
	}
	return rtnl.Link{}
}
