package failover

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// node is an inquiry about a node: the ports of its own and some of its endpoints are probed, and
// others as control. An endpoint whose node is not known has an inquiry of its own, without ports.
type node struct {
	name  string
	asker cluster.Name // the Service on whose behalf it is looked up
	last  time.Duration

	looked bool           // the Node object was requested
	known  bool           // and exists
	addrs  []netip.Addr   // the node's own
	pods   []netip.Prefix // of its pods, if it has any

	open    bool // an inquiry is under way, since start
	begun   bool // its probes are requested
	start   time.Duration
	askers  []cluster.Name // Services on whose behalf, of different namespaces
	witness *target        // the endpoint that caused it; may be nil
	members []*target

	down  bool
	since time.Duration
	whole bool // down with all its endpoints
	reach bool // it answered last
	upAt  time.Duration
	flaps int
	next  time.Duration // the next probe while down; negative if none
	// attempts are inquiries without an answer, by the namespace that asked: none delays those of
	// another.
	attempts map[string]attempts
}

// attempts are inquiries without an answer, and the time before which there is no other.
type attempts struct {
	misses int
	before time.Duration
}

// ports answer on every node with a kubelet and a proxy, or are refused: both are answers.
var ports = []uint16{10250, 10256}

// lone is the prefix of the names of inquiries about an endpoint without a node. No node has such a
// name.
const lone = "\x00"

// real reports whether the inquiry is about a node.
func (n *node) real() bool { return !strings.HasPrefix(n.name, lone) && n.name != apiServer }

// apiServer is the name of the API server as a control.
const apiServer = " API server"

// claims returns the nodes that slices of the Service name for an address, and whether one is this
// node. The word of another Service's slices has no effect on this Service.
func (s *State) claims(a netip.Addr, service cluster.Name) (names []string, here bool) {
	v := s.table.View(service)
	for _, sl := range v.Slices {
		for e := range sl.Endpoints.All() {
			name := e.Place().Node
			switch {
			case e.Addr != a || name == "" || slices.Contains(names, name):
			case e.OnNode(v.Node.NodeName):
				here = true
			case len(names) < maxClaims:
				names = append(names, name)
			}
		}
	}
	return names, here
}

// inquireFor begins inquiries about the nodes of a target.
func (s *State) inquireFor(now time.Duration, t *target) {
	t.nodes, t.here = nil, false
	for _, asker := range t.askers {
		names, here := s.claims(t.at.Addr(), asker)
		t.here = t.here || here
		if len(names) == 0 && !here {
			names = []string{lone + t.at.String()}
		}
		for _, name := range names {
			if !slices.Contains(t.nodes, name) {
				t.nodes = append(t.nodes, name)
				s.inquire(now, name, t, asker)
			}
		}
	}
	s.judge(now, t)
}

// inquire begins an inquiry about a node, or joins the one that is under way, unless one on behalf
// of the namespace has ended just now.
func (s *State) inquire(now time.Duration, name string, witness *target, asker cluster.Name) {
	n := s.node(now, name, asker)
	if n.down || n.attempts[asker.Namespace].before > now {
		return
	}
	if n.open {
		s.join(now, n, asker)
		return
	}
	n.open, n.begun, n.start, n.witness, n.asker = true, false, now, witness, asker
	n.askers = []cluster.Name{asker}
	n.members = nil
	if n.real() && !n.known { // a Node that was missing may exist now
		s.lookUp(n)
		return
	}
	s.begin(now, n)
}

// join has an inquiry that is under way run on behalf of another namespace, too: its probes wait in
// that share as well, and controls are endpoints of that Service as well.
func (s *State) join(now time.Duration, n *node, asker cluster.Name) {
	if len(n.askers) == maxAskers || slices.ContainsFunc(n.askers, func(o cluster.Name) bool {
		return o.Namespace == asker.Namespace
	}) {
		return
	}
	n.askers, n.start = append(n.askers, asker), now
	if !n.begun {
		return
	}
	for _, t := range n.members {
		if t.pending() {
			s.target(now, t.at, asker)
		}
	}
	s.askPorts(now, n, asker)
	s.askControls(now, n, asker)
}

func (s *State) node(now time.Duration, name string, asker cluster.Name) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name, asker: asker, next: -1, upAt: -time.Hour, attempts: map[string]attempts{}}
		s.nodes[name] = n
	}
	n.last = now
	return n
}

func (s *State) lookUp(n *node) {
	if !slices.Contains(s.lookups, n) {
		s.lookups = append(s.lookups, n)
	}
}

// Node takes the answer to a lookup: the internal addresses of the Node and its pod CIDRs; found is
// false if there is no such Node, or if it cannot be read.
func (s *State) Node(now time.Duration, name string, addrs []netip.Addr, pods []netip.Prefix, found bool) {
	n := s.nodes[name]
	if n == nil {
		return
	}
	n.looked, n.known, n.addrs, n.pods = true, found && len(addrs) > 0, addrs, pods
	if h := s.share(n.asker.Namespace); found {
		h.missing, h.lookAfter = 0, now
	} else { // names that slices make up cost few requests
		h.missing++
		h.lookAfter = now + backoff(h.missing-2, s.random())
	}
	if n.open && !n.begun {
		s.begin(now, n)
	}
	for _, t := range s.targets { // it may be the node of a control
		if found && t.of == name && !t.port && (t.pending() || t.fresh(now)) {
			s.controlPorts(now, n, t.askers[0])
			break
		}
	}
}

// begin asks the node's ports, endpoints on it, and controls.
func (s *State) begin(now time.Duration, n *node) {
	n.begun = true
	if n.witness != nil {
		n.members = append(n.members, n.witness)
	}
	for _, asker := range n.askers {
		s.askPorts(now, n, asker)
	}
	if n.real() && n.known {
		s.askEndpoints(now, n)
	}
	s.needControls(now, n)
	s.conclude(now, n)
}

// askPorts asks the node's ports.
func (s *State) askPorts(now time.Duration, n *node, asker cluster.Name) {
	if !n.real() || !n.known {
		return
	}
	for _, port := range ports {
		if t := s.askMember(now, n, netip.AddrPortFrom(n.addrs[0], port), asker); t != nil {
			t.of, t.port = n.name, true
		}
	}
}

// ask has an address probed for an inquiry, unless it was silent within the last second. It returns
// nil if the namespace of the asker has no room.
func (s *State) ask(now time.Duration, at netip.AddrPort, asker cluster.Name) *target {
	t := s.target(now, at, asker)
	switch {
	case t == nil:
	case t.result.Reached(): // it may be silent by now
		s.schedule(t, max(now, t.done+TryAfter), Tries, inquired)
	case !t.fresh(now):
		s.schedule(t, now, Tries, inquired)
	}
	return t
}

// fresh reports whether the last probe ended less than a second before a time, or after it.
func (t *target) fresh(than time.Duration) bool { return t.done >= 0 && t.done >= than-time.Second }

// pending reports whether a probe is due or under way.
func (t *target) pending() bool { return t.running || t.due >= 0 }

func (s *State) askMember(now time.Duration, n *node, at netip.AddrPort, asker cluster.Name) *target {
	t := s.ask(now, at, asker)
	if t != nil && !slices.Contains(n.members, t) {
		n.members = append(n.members, t)
	}
	return t
}

// askControl asks an address on another node, or the API server.
func (s *State) askControl(now time.Duration, at netip.AddrPort, of string, asker cluster.Name) {
	if t := s.ask(now, at, asker); t != nil {
		t.of = of
	}
}

// shows reports whether t is a control whose answer shows that the link of this node carries probes
// to o. An endpoint is no control for the ports of its own node.
func (t *target) shows(o *target) bool { return t.of != "" && t != o && !(o.port && o.of == t.of) }

// controlFor returns the control of the target's namespaces that answered last.
func (s *State) controlFor(t *target) (last *target) {
	for _, o := range s.targets {
		if o.result.Reached() && o.shows(t) && (last == nil || o.done > last.done) &&
			slices.ContainsFunc(t.askers, func(n cluster.Name) bool { return o.askedBy(n.Namespace) }) {
			last = o
		}
	}
	return last
}

// askControlOf has a control probed during the series of a silent target: one for all that began
// within TryAfter.
func (s *State) askControlOf(t *target) {
	if o := s.controlFor(t); o != nil && !t.linked {
		s.schedule(o, t.begun+TryAfter, Tries, control)
	}
}

// linkedSince reports whether a control of the target answered after its last series.
func (s *State) linkedSince(t *target) bool {
	o := s.controlFor(t)
	return o != nil && o.done > t.done
}

// controlPorts asks the ports of another node as controls.
func (s *State) controlPorts(now time.Duration, other *node, asker cluster.Name) {
	if len(other.addrs) > 0 {
		for _, port := range ports {
			s.askControl(now, netip.AddrPortFrom(other.addrs[0], port), other.name, asker)
		}
	}
}

// maxMembers is the most endpoints of a node that are probed, each of another namespace.
const maxMembers = 4

// askEndpoints asks endpoints on the node, first those that answered last. An address outside the
// pod CIDRs of the Node, if it has any, is not believed to be there.
func (s *State) askEndpoints(now time.Duration, n *node) {
	best := map[string]netip.AddrPort{}
	answered := func(at netip.AddrPort) time.Duration {
		if t := s.targets[at]; t != nil {
			return t.answered
		}
		return -1
	}
	for _, name := range s.table.OnNode(n.name, maxServices) {
		there := s.endpoints(name, func(e *cluster.Endpoint) bool { return e.Place().Node == n.name && n.may(e.Addr) })
		for at := range there {
			was, has := best[name.Namespace]
			if (!has || answered(at) > answered(was)) && s.table.Serves(name, at) {
				best[name.Namespace] = at
			}
		}
	}
	if n.witness != nil {
		delete(best, n.askers[0].Namespace)
	}
	all := make([]netip.AddrPort, 0, len(best))
	for _, at := range best {
		all = append(all, at)
	}
	slices.SortFunc(all, func(a, b netip.AddrPort) int {
		return cmp.Or(cmp.Compare(answered(b), answered(a)), a.Compare(b))
	})
	for _, at := range all[:min(len(all), maxMembers)] {
		for _, asker := range n.askers {
			s.askMember(now, n, at, asker)
		}
	}
}

func (n *node) may(a netip.Addr) bool {
	return len(n.pods) == 0 || slices.ContainsFunc(n.pods, func(p netip.Prefix) bool { return p.Contains(a) })
}

// endpoints returns the ready TCP endpoints of a Service that is accepts, with their nodes.
func (s *State) endpoints(name cluster.Name, is func(*cluster.Endpoint) bool) map[netip.AddrPort]string {
	found := map[netip.AddrPort]string{}
	for _, sl := range s.table.View(name).Slices {
		for e := range sl.Endpoints.All() {
			if !e.Ready || !is(&e) {
				continue
			}
			for _, p := range sl.Ports {
				if p.Protocol == cluster.TCP && p.Port != 0 {
					found[netip.AddrPortFrom(e.Addr, p.Port)] = e.Place().Node
				}
			}
		}
	}
	return found
}

// maxControls is the most endpoints on other nodes that are probed at once, as a test of this
// node's own link.
const maxControls = 2

// askMoreControls asks controls on behalf of each asker, and reports whether there are new ones.
func (s *State) askMoreControls(now time.Duration, n *node) (more bool) {
	for _, asker := range n.askers {
		more = s.askControls(now, n, asker) || more
	}
	return more
}

// askControls asks endpoints of the asking Service on other nodes, and the ports of those nodes;
// without such endpoints, the API server. Unknown nodes come first: the more nodes are known to
// answer, the more may be unreachable. It asks no node twice during the inquiry on behalf of one
// namespace, and reports whether it asks any.
func (s *State) askControls(now time.Duration, n *node, asker cluster.Name) bool {
	v := s.table.View(asker)
	asked := map[string]bool{}
	for _, t := range s.targets {
		if t.of != "" && t.askedBy(asker.Namespace) && (t.pending() || t.done >= n.start) {
			asked[t.of] = true
		}
	}
	type candidate struct {
		at    netip.AddrPort
		of    string
		order float64
	}
	var all []candidate
	for at, of := range s.endpoints(asker, func(e *cluster.Endpoint) bool {
		at := e.Place().Node
		return at != "" && at != n.name && at != v.Node.NodeName && !here(&v.Node, e.Addr) && !s.isDown(at)
	}) {
		c := candidate{at, of, s.random()}
		o, t := s.nodes[of], s.targets[at]
		switch {
		case o != nil && o.open, t != nil && t.noticed >= 0:
			c.order += 2 // it may be dead, too
		case o != nil && o.reach:
			c.order++
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.order, b.order) })
	more := 0
	for _, c := range all {
		if asked[c.of] || more == maxControls || !s.table.Serves(asker, c.at) {
			continue
		}
		asked[c.of] = true
		more++
		s.askControl(now, c.at, c.of, asker)
		if o := s.node(now, c.of, asker); more > 1 || s.portsWork(now) {
			continue
		} else if !o.looked {
			s.lookUp(o)
		} else {
			s.controlPorts(now, o, asker)
		}
	}
	if len(all) > 0 || asked[apiServer] {
		return more > 0
	}
	for _, at := range v.Node.APIServers {
		if more < maxControls && !slices.Contains(n.addrs, at.Addr()) && !here(&v.Node, at.Addr()) {
			more++
			s.node(now, apiServer, asker)
			s.askControl(now, at, apiServer, asker)
		}
	}
	return more > 0
}

// here reports whether an address is on this node, so that it answers without a link.
func here(f *cluster.Facts, a netip.Addr) bool {
	if slices.Contains(f.Own, a) {
		return true
	}
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	return f.Node != nil && slices.ContainsFunc(f.Node.PodCIDRs, within)
}

// linkCheck is the time after a verdict during which more controls are probed.
const linkCheck = 10 * time.Second

// widen asks more controls while this node's own link is suspected.
func (s *State) widen(now time.Duration, n *node) {
	if n.down && now <= n.since+linkCheck && s.OwnLink() && !s.controlDue(n) {
		s.askMoreControls(now, n)
	}
}

// needControls asks controls for namespaces that have none.
func (s *State) needControls(now time.Duration, n *node) {
	for _, asker := range n.askers {
		if !s.hasControl(now, n, asker) {
			s.askControls(now, n, asker)
		}
	}
}

// hasControl reports whether a control of the namespace answered just now, or may answer soon: it
// serves all inquiries of the namespace.
func (s *State) hasControl(now time.Duration, n *node, asker cluster.Name) bool {
	for _, t := range s.targets {
		if t.of != "" && t.of != n.name && !t.port && t.askedBy(asker.Namespace) &&
			(t.result.Reached() && t.fresh(now) || t.due >= 0 || t.running && now < t.begun+QuietAfter) {
			return true
		}
	}
	return false
}

// controlDue reports whether a control was asked on behalf of an asker, and its answer is awaited.
func (s *State) controlDue(n *node) bool {
	for _, t := range s.targets {
		if t.of != "" && t.of != n.name && t.pending() && (t.running || t.needs < doubtful) &&
			slices.ContainsFunc(n.askers, func(a cluster.Name) bool { return t.askedBy(a.Namespace) }) {
			return true
		}
	}
	return false
}

// maxInquiry is how long an inquiry looks for a control that answers.
const maxInquiry = 5 * time.Second

// awaits reports whether the inquiry still needs the result of a member. A member that was probed
// for it may be due again because of a client's notice: that must not delay the verdict.
func (n *node) awaits(now time.Duration, t *target) bool {
	return t.done < n.start && (t.running || t.due >= 0 && (t.due <= now || t.needs < doubtful))
}

// conclude ends an inquiry once its answers are there.
func (s *State) conclude(now time.Duration, n *node) {
	awaited := func(t *target) bool { return n.awaits(now, t) }
	if !n.begun || slices.ContainsFunc(n.members, awaited) {
		return
	}
	// The ports of the node itself must be silent; an endpoint alone proves nothing about its node.
	silent, unproven := s.portsSilent(n)
	if len(unproven) > 0 && now < n.start+maxInquiry {
		switch {
		case slices.ContainsFunc(unproven, s.linkedSince):
			for _, t := range unproven {
				s.schedule(t, now, Tries, inquired)
			}
			return
		case s.controlDue(n), s.askMoreControls(now, n):
			return
		}
	}
	n.open = false
	for _, asker := range n.askers {
		misses := n.attempts[asker.Namespace].misses
		n.attempts[asker.Namespace] = attempts{misses + 1, now + backoff(misses, s.random())}
	}
	if silent {
		s.lost(now, n)
	}
	s.judgeAll(now, n)
}

// judgeAll decides about the targets of a node.
func (s *State) judgeAll(now time.Duration, n *node) {
	for _, t := range s.targets {
		if slices.Contains(t.nodes, n.name) {
			s.judge(now, t)
		}
	}
}

// portsSilent reports whether all ports of the node were silent in this inquiry, while the link of
// this node worked. Silence of those that are unproven perhaps was that of the link.
func (s *State) portsSilent(n *node) (silent bool, unproven []*target) {
	if !n.known || !n.real() {
		return false, nil
	}
	silent = true
	for _, port := range ports {
		t := s.targets[netip.AddrPortFrom(n.addrs[0], port)]
		proven := t != nil && t.fresh(n.start) && !t.pending() && !t.result.Reached() && t.tried == Tries && t.linked
		silent = silent && proven
		if t != nil && !proven {
			unproven = append(unproven, t)
		}
	}
	return silent, unproven
}

// portsWork reports whether a port of a node answered lately.
func (s *State) portsWork(now time.Duration) bool {
	return s.portsAnswered >= 0 && now-s.portsAnswered < memory
}

// portOf records that probes of ports of nodes work in this cluster.
func (s *State) portOf(now time.Duration, t *target) {
	if !slices.Contains(ports, t.at.Port()) {
		return
	}
	for _, n := range s.nodes {
		if slices.Contains(n.addrs, t.at.Addr()) {
			s.portsAnswered = now
		}
	}
	for _, n := range s.nodes {
		if n.down && !n.whole && s.portsAnswered == now {
			n.whole, s.changed = true, true
		}
	}
}

// reached records that a node answered: by a port of its own, or by an endpoint on it.
func (s *State) reached(now time.Duration, n *node) {
	if !n.reach {
		n.reach, s.changed = true, true
	}
	n.open, n.next = false, -1
	clear(n.attempts)
	returned := n.down
	if returned {
		n.down, n.upAt, s.changed = false, now, true
		s.up = append(s.up, n.name)
	}
	for _, t := range s.targets {
		if !slices.Contains(t.nodes, n.name) {
			continue
		}
		if returned && t.result == Silent && !t.running { // the dead node explained it
			t.result, t.misses, t.alone = Unknown, 0, t.alone && t.since < n.since
		}
		if t.alone && !t.pending() {
			s.again(now, t)
		}
		s.judge(now, t)
	}
}

// lost records that a node is unreachable.
func (s *State) lost(now time.Duration, n *node) {
	if now-n.upAt > time.Minute {
		n.flaps = 0 // else a flapping node stays avoided for longer
	}
	n.down, n.since, n.reach, s.changed = true, now, false, true
	n.whole = s.portsWork(now)
	n.next = now + backoff(n.flaps, s.random())
	s.down = append(s.down, n.name)
	for _, t := range s.targets {
		if t.alone && t.result == Silent && slices.Contains(t.nodes, n.name) {
			t.alone, t.due = false, -1 // the node explains it, and is probed instead
		}
	}
	for _, e := range s.EndpointsOn(n.name) {
		if t := s.targets[e.Addr]; n.whole || e.Proto != lb.TCP || t != nil && t.result == Silent {
			s.rescue[e] = true
		}
	}
}

// EndpointsOn returns the endpoints that slices place on the node, in no order.
func (s *State) EndpointsOn(name string) (all []Endpoint) {
	found := map[Endpoint]bool{}
	for _, service := range s.table.OnNode(name, 1<<20) {
		for _, sl := range s.table.View(service).Slices {
			for e := range sl.Endpoints.All() {
				if e.Place().Node != name {
					continue
				}
				for _, p := range sl.Ports {
					found[Endpoint{netip.AddrPortFrom(e.Addr, p.Port), lb.Proto(p.Protocol)}] = true
				}
			}
		}
	}
	for e := range found {
		all = append(all, e)
	}
	return all
}

// recheck has a node probed that is down: one of its ports and one of its endpoints, the next ones
// in turn, each with one try.
func (s *State) recheck(n *node, now time.Duration) {
	if !n.down || n.next > now {
		return
	}
	n.flaps++
	n.next = now + backoff(n.flaps, s.random())
	n.last = now
	isPort := func(t *target) bool { return slices.Contains(n.addrs, t.at.Addr()) }
	isEndpoint := func(t *target) bool { return !isPort(t) }
	for _, which := range []func(*target) bool{isPort, isEndpoint} {
		if i := slices.IndexFunc(n.members, which); i >= 0 {
			t := n.members[i]
			t.last = now
			s.schedule(t, now, 1, inquired)
			n.members = append(slices.Delete(n.members, i, i+1), t)
		}
	}
	if len(s.table.OnNode(n.name, 1)) == 0 { // nothing to avoid there
		n.down, n.next, s.changed = false, -1, true
		s.up = append(s.up, n.name)
	}
}

// OwnLink reports whether most of the nodes that were asked are unreachable, so that nothing is
// avoided.
func (s *State) OwnLink() bool {
	down, reached := 0, 0
	for _, n := range s.nodes {
		switch {
		case n.down:
			down++
		case n.reach && !strings.HasPrefix(n.name, lone):
			reached++
		}
	}
	return down > reached
}
