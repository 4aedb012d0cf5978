package failover

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// Table has the Services and endpoints. A [cluster.Store] has all but Serves.
type Table interface {
	// WithAddr and OnNode return names of Services with an endpoint at the address, or placed on
	// the node.
	WithAddr(a netip.Addr, limit int) []cluster.Name
	OnNode(node string, limit int) []cluster.Name
	View(cluster.Name) cluster.View
	// Serves reports whether policy serves the endpoint for the Service.
	Serves(cluster.Name, netip.AddrPort) bool
}

// State is what is known of endpoints and nodes. Its times are those of a monotonic clock, in any
// origin. It is not safe for concurrent use. Make one with [New].
type State struct {
	table  Table
	random func() float64 // from 0 to 1

	targets map[netip.AddrPort]*target
	nodes   map[string]*node
	shares  map[string]*share
	order   []*share // the next one first
	all     window
	lookups []*node
	// portsAnswered is when a port of a node last answered: such probes work in this cluster.
	// Negative if none ever did.
	portsAnswered time.Duration
	refused       int // notices beyond the limit of their namespace
	swept         time.Duration

	published cluster.Unreachable
	changed   bool
	rescue    map[Endpoint]bool
	down, up  []string
}

// New returns an empty State.
func New(table Table, random func() float64) *State {
	return &State{
		table: table, random: random, targets: map[netip.AddrPort]*target{}, nodes: map[string]*node{},
		shares: map[string]*share{}, all: newWindow(perSecond), portsAnswered: -1, rescue: map[Endpoint]bool{},
	}
}

// target is an address and port that is probed: an endpoint, or a port of a node.
type target struct {
	at     netip.AddrPort
	askers []cluster.Name // Services on whose behalf it is probed, of different namespaces
	payer  string         // the namespace that made it
	client bool           // a client waited for it
	// waited are namespaces whose clients waited for it since it last answered, at most maxAskers.
	waited  map[string]bool
	noticed time.Duration // the first notice since it last answered; negative if none
	last    time.Duration // the last notice or use

	due     time.Duration // the next probe; negative if none
	tries   int
	needs   rank // of the next probe; doubtful if only clients wait for it
	running bool
	begun   time.Duration // the last probe
	tried   int           // its tries

	result   Result        // of the last probe
	done     time.Duration // the end of the last probe; negative if none
	answered time.Duration // the last answer; negative if none
	linked   bool          // the link of this node worked during the last series
	alone    bool          // it is unreachable by its own probes
	since    time.Duration // since when
	misses   int           // probes without an answer in a row
	nodes    []string      // inquiries about its nodes
	here     bool          // a slice places it on this node
	of       string        // the node, if it is a control or a port
	port     bool          // it is a port of that node
	told     bool          // it was reported as unreachable since its first notice
}

// Notice takes a notice about an endpoint that policy serves for the Service, whose client sent the
// packet. Notices about what is unreachable already ask for another rescue.
func (s *State) Notice(now time.Duration, n Notice, service cluster.Name) {
	e, names := Endpoint{n.Endpoint, n.Proto}, []string(nil)
	if n.Proto != lb.TCP || !s.published.IsZero() {
		names, _ = s.claims(n.Endpoint.Addr(), service)
	}
	is, byNode := s.avoids(e, names)
	if is {
		s.rescue[e] = true
	}
	if byNode {
		return // the node is probed
	}
	if n.Proto != lb.TCP { // such an endpoint is avoided with its node
		for _, name := range names {
			s.inquire(now, name, nil, service)
		}
		return
	}
	t := s.target(now, n.Endpoint, service)
	if t == nil {
		s.refused++
		return
	}
	if !t.client {
		_, t.here = s.claims(t.at.Addr(), service)
	}
	first := !t.waited[service.Namespace] && len(t.waited) < maxAskers
	if first {
		t.waited[service.Namespace] = true
	}
	t.client, t.last = true, now
	if t.noticed < 0 {
		t.noticed = now
	}
	if t.running && first && len(t.nodes) > 0 { // its first try was silent already
		s.inquireFor(now, t)
	}
	if !t.running && (t.due < 0 || first) {
		s.schedule(t, s.earliest(t, now, first), Tries, doubtful)
	}
}

// avoids reports whether an endpoint on one of the nodes is unreachable, and whether that is
// because of a node.
func (s *State) avoids(e Endpoint, nodes []string) (is, byNode bool) {
	for _, name := range append(nodes, "") {
		own, by := s.published.Has(e.Addr, cluster.Protocol(e.Proto), name)
		is, byNode = is || own, byNode || by
	}
	return is, byNode
}

// Unreachable returns the endpoints that are unreachable according to the last verdict, for one of
// the Services that have them.
func (s *State) Unreachable() map[Endpoint]bool {
	all := map[Endpoint]bool{}
	for _, e := range s.Lost() {
		all[e] = true
	}
	for at, alone := range s.published.Endpoints {
		if alone {
			all[Endpoint{at, lb.TCP}] = true
		}
	}
	return all
}

// earliest returns when a client may cause the next probe of a target. The first client of a
// namespace does not wait because of probes on behalf of others.
func (s *State) earliest(t *target, now time.Duration, first bool) time.Duration {
	switch {
	case t.result.Reached():
		return max(now, t.done+time.Second)
	case t.done < 0, first:
		return now
	}
	return max(now, t.done+backoff(t.misses-1, s.random()))
}

// target returns the target of an address, which it makes if the share of the namespace has room.
func (s *State) target(now time.Duration, at netip.AddrPort, service cluster.Name) *target {
	t := s.targets[at]
	if t == nil {
		h := s.share(service.Namespace)
		if h.watched >= maxTargets && !s.evict(now, service.Namespace) {
			return nil
		}
		h.watched++
		t = &target{at: at, payer: service.Namespace, noticed: -1, due: -1, done: -1, answered: -1,
			needs: doubtful, waited: map[string]bool{}}
		s.targets[at] = t
	}
	t.last = now
	if !t.askedBy(service.Namespace) && len(t.askers) < maxAskers {
		t.askers = append(t.askers, service)
		if t.due >= 0 {
			h := s.share(service.Namespace)
			h.waiting = append(h.waiting, t)
		}
	}
	return t
}

// askedBy reports whether the target is probed on behalf of the namespace.
func (t *target) askedBy(namespace string) bool {
	return slices.ContainsFunc(t.askers, func(n cluster.Name) bool { return n.Namespace == namespace })
}

// evict forgets the target of the namespace that was unused for the longest time, else one that
// answered lately, and reports whether it found one. Verdicts and probes under way stay.
func (s *State) evict(now time.Duration, namespace string) bool {
	var oldest, answered *target
	held := s.held()
	for _, t := range s.targets {
		switch {
		case t.payer != namespace || held[t] || t.running || t.alone:
		case t.due < 0 && t.last+time.Second < now:
			if oldest == nil || t.last < oldest.last {
				oldest = t
			}
		case t.rank(now) == calm && (answered == nil || t.done > answered.done):
			answered = t
		}
	}
	if oldest == nil {
		oldest = answered
	}
	if oldest != nil {
		s.forget(oldest)
	}
	return oldest != nil
}

// busy reports whether a target has a probe or a verdict.
func (t *target) busy() bool { return t.pending() || t.alone }

// held returns the targets that take part in inquiries, or belong to nodes that are down.
func (s *State) held() map[*target]bool {
	held := map[*target]bool{}
	for _, n := range s.nodes {
		if n.open || n.down {
			for _, t := range n.members {
				held[t] = true
			}
		}
	}
	for _, t := range s.targets {
		if slices.ContainsFunc(t.nodes, s.isDown) {
			held[t] = true
		}
	}
	return held
}

// inquires reports whether an inquiry asks the ports of the node.
func (s *State) inquires(name string) bool {
	n := s.nodes[name]
	return n != nil && n.open && n.begun && n.known && n.real()
}

func (s *State) isDown(name string) bool {
	n := s.nodes[name]
	return n != nil && n.down
}

func (s *State) forget(t *target) {
	delete(s.targets, t.at)
	t.due = -1
	if t.alone {
		t.alone, s.changed = false, true
	}
	s.shares[t.payer].watched--
}

func (s *State) share(namespace string) *share {
	h := s.shares[namespace]
	if h == nil {
		h = &share{namespace: namespace, window: newWindow(perShare)}
		s.shares[namespace] = h
		s.order = append(s.order, h)
	}
	return h
}

// schedule queues a probe of the target in the shares of its askers.
func (s *State) schedule(t *target, due time.Duration, tries int, needs rank) {
	if t.running {
		return
	}
	t.needs = min(t.needs, needs)
	if t.due >= 0 { // it waits already
		t.due, t.tries = min(t.due, due), max(t.tries, tries)
		return
	}
	t.due, t.tries = due, tries
	for _, of := range t.askers {
		h := s.share(of.Namespace)
		h.waiting = append(h.waiting, t)
	}
}

// Knows reports whether the endpoint is probed for a client: policy served it then.
func (s *State) Knows(at netip.AddrPort) bool {
	t := s.targets[at]
	return t != nil && t.client
}

// Work is what is due: series to probe, and Nodes to look up. Next is when to ask again, never
// before that unless something else happens.
type Work struct {
	Probes  []Probe
	Lookups []string
	Next    time.Duration
}

// Due returns the work that is due, within the limits: namespaces take turns.
func (s *State) Due(now time.Duration) Work {
	w := Work{Next: never}
	for _, n := range s.nodes {
		s.recheck(n, now)
		if n.next >= 0 {
			w.Next = min(w.Next, n.next)
		}
	}
	s.lookups = slices.DeleteFunc(s.lookups, func(n *node) bool {
		free := never
		for _, asker := range append([]cluster.Name{n.asker}, n.askers...) { // the first that may
			h := s.share(asker.Namespace)
			if at := max(h.free(inquired), s.all.free(inquired), h.lookAfter); at < free {
				free, n.asker = at, asker
			}
		}
		h := s.share(n.asker.Namespace)
		if free > now {
			w.Next = min(w.Next, free)
			return false
		}
		h.take(now)
		s.all.take(now)
		w.Lookups = append(w.Lookups, n.name)
		return true
	})
	w.Next = min(w.Next, s.dueProbes(now, &w))
	s.sweep(now)
	return w
}

// dueProbes adds the probes that are due, and returns when there may be others.
func (s *State) dueProbes(now time.Duration, w *Work) (next time.Duration) {
	next = never
	if free := s.all.free(control); free > now {
		return free
	}
	var turns []*share // with a target that is due
	look := func(h *share, at int) {
		due := never
		if h.first, due = h.find(now); h.first != nil {
			turns = slices.Insert(turns, at, h)
			return
		}
		next = min(next, due)
		s.endTurn(h)
	}
	for _, h := range slices.Clone(s.order) {
		look(h, len(turns))
	}
	for len(turns) > 0 {
		i := nextTurn(turns, now)
		h := turns[i]
		t := h.first
		if free := s.all.free(t.rank(now)); free > now {
			return min(next, free)
		}
		turns = slices.Delete(turns, i, i+1)
		switch {
		case t.due < 0: // another namespace had it probed
		case !s.exists(t):
			s.forget(t)
		default:
			h.take(now)
			s.all.take(now)
			h.turn++
			if t.needs != inquired || h.turn == maxTurn {
				s.endTurn(h)
			}
			t.due, t.running, t.begun, t.tried, t.needs, t.linked = -1, true, now, t.tries, doubtful, false
			w.Probes = append(w.Probes, Probe{t.at, t.tries, t.here})
		}
		if h.turn == 0 {
			i = len(turns)
		}
		look(h, i)
	}
	return next
}

// endTurn ends the turn of a share, if it had one.
func (s *State) endTurn(h *share) {
	if h.turn > 0 {
		h.turn = 0
		s.order = append(slices.DeleteFunc(s.order, func(o *share) bool { return o == h }), h)
	}
}

// nextTurn returns the index of the share that sends next: the one that waits for the longest time,
// unless another one has a control, or it has only what answered lately.
func nextTurn(turns []*share, now time.Duration) (best int) {
	class := func(h *share) int {
		switch h.first.rank(now) {
		case control:
			return 0
		case calm:
			return 2
		}
		return 1
	}
	for i, h := range turns {
		if class(h) < class(turns[best]) {
			best = i
		}
	}
	return best
}

// exists reports whether a target is still an endpoint that a Service has, or was never one.
func (s *State) exists(t *target) bool {
	return !t.client || len(s.table.WithAddr(t.at.Addr(), 1)) > 0
}

// memory is how long an unused target is remembered.
const memory = 10 * time.Minute

// brief is how long a node that does not exist is remembered.
const brief = 10 * time.Second

// overdue is the longest time between two probes of an endpoint that is unreachable by itself.
const overdue = 10 * time.Second

// sweep forgets unused targets, nodes and shares, once a second.
func (s *State) sweep(now time.Duration) {
	if now < s.swept+time.Second {
		return
	}
	s.swept = now
	held := s.held()
	for _, t := range s.targets {
		if t.last+memory < now && !held[t] && !t.busy() {
			s.forget(t)
		}
		if t.alone && !t.running && t.done+overdue < now { // whatever delayed it, it returns
			t.due = -1
			s.schedule(t, now, 1, doubtful)
		}
	}
	downs := false
	for _, n := range s.nodes {
		downs = downs || n.down
	}
	for name, n := range s.nodes {
		keep := time.Duration(brief)
		if n.known || n.name == apiServer {
			keep = memory
		}
		if !n.open && !n.down && n.last+keep < now && !(downs && n.reach) {
			delete(s.nodes, name)
		}
	}
	s.order = slices.DeleteFunc(s.order, func(h *share) bool {
		empty := len(h.waiting) == 0 && h.watched == 0 && h.times[(h.next+perShare-1)%perShare]+time.Second < now
		if empty {
			delete(s.shares, h.namespace)
		}
		return empty
	})
}

// Answer takes the result of a probe.
func (s *State) Answer(now time.Duration, at netip.AddrPort, r Result) {
	t := s.targets[at]
	if t == nil {
		return
	}
	if r == Waiting {
		if t.client && t.tried > 1 {
			s.inquireFor(now, t)
		}
		// The ports of its node are controls of an endpoint. One that never answered needs none.
		if t.tried > 1 && (t.port || t.answered >= 0 && !slices.ContainsFunc(t.nodes, s.inquires)) {
			s.askControlOf(t)
		}
		if t.of == "" {
			return
		}
		for _, n := range s.nodes {
			if n.open && n.begun && now < n.start+TryAfter { // others may answer in time
				s.needControls(now, n)
			}
		}
		return
	}
	t.running, t.result, t.done = false, r, now
	if r.Reached() {
		s.answers(now, t)
	} else {
		t.misses++
		s.misses(now, t)
	}
	for _, n := range s.nodes {
		if n.open {
			s.conclude(now, n)
		}
		s.widen(now, n)
	}
	if r.Reached() && t.of != "" {
		for _, o := range s.targets {
			s.judge(now, o)
		}
	}
}

// answers records that a target answered.
func (s *State) answers(now time.Duration, t *target) {
	t.answered, t.noticed, t.misses, t.told = now, -1, 0, false
	clear(t.waited)
	if t.alone {
		t.alone, s.changed = false, true
	}
	for _, n := range s.nodes {
		if slices.Contains(n.members, t) {
			s.reached(now, n)
		}
	}
	if o := s.nodes[t.of]; o != nil && !o.down && !o.reach {
		o.reach, s.changed = true, true
	}
	for _, o := range s.targets {
		if o.running && t.shows(o) && t.begun > o.begun && now <= o.begun+time.Duration(o.tried-1)*TryAfter {
			o.linked = true
		}
	}
	if !t.client {
		s.portOf(now, t)
	}
}

// misses records that a target did not answer.
func (s *State) misses(now time.Duration, t *target) {
	switch {
	case !t.client:
	case t.result == NoRoute:
		s.lose(now, t)
	case t.alone:
		s.again(now, t)
	case t.tried == 1: // it belongs to a node that is down
	case len(t.nodes) == 0: // its first try was not reported
		s.inquireFor(now, t)
	default:
		s.judge(now, t)
	}
}

// lose makes a target unreachable by its own probes.
func (s *State) lose(now time.Duration, t *target) {
	if !t.alone {
		t.alone, t.since, s.changed = true, now, true
		s.rescue[Endpoint{t.at, lb.TCP}] = true
	}
	s.again(now, t)
}

// again schedules the next probe of an unreachable target. A dead node is probed instead of its
// endpoints.
func (s *State) again(now time.Duration, t *target) {
	if !slices.ContainsFunc(t.nodes, s.isDown) {
		s.schedule(t, now+backoff(t.misses-1, s.random()), 1, doubtful)
	}
}

// verdictAge is the age up to which a silent probe proves anything: later inquiries need a new one.
const verdictAge = 3 * time.Second

// judge decides about a silent target once the inquiries about its nodes ended: it is unreachable
// if it answered before, and the link of this node works.
func (s *State) judge(now time.Duration, t *target) {
	if t.result != Silent || t.running || t.tried < Tries || t.alone || !t.client || now-t.done > verdictAge {
		return
	}
	for _, name := range t.nodes {
		n := s.nodes[name]
		if n == nil {
			continue
		}
		if n.open {
			return
		}
		if n.down {
			s.rescue[Endpoint{t.at, lb.TCP}], s.changed = true, true
			return
		}
	}
	switch {
	case t.answered < 0:
	case t.here, t.linked: // on this node no link is involved
		s.lose(now, t)
	case s.linkedSince(t): // the link works now: did it when the target was silent?
		s.schedule(t, now, Tries, inquired)
	}
}

// Verdict is the outcome since the last call of [State.Verdict].
type Verdict struct {
	// Unreachable is what counts now. It is empty while most nodes that were asked are unreachable:
	// then the link of this node is the problem. Changed reports whether it is new.
	Unreachable cluster.Unreachable
	Changed     bool
	// Rescue are endpoints whose waiting clients may be sent elsewhere.
	Rescue []Endpoint
	// Waited has, for each endpoint that is newly unreachable, the time since its first notice.
	Waited []time.Duration
	// Down and Up are nodes that are unreachable, or answered again, since then.
	Down, Up []string
}

// Verdict returns what changed.
func (s *State) Verdict(now time.Duration) Verdict {
	v := Verdict{Down: s.down, Up: s.up}
	if s.changed {
		u := s.current()
		for at := range u.Endpoints {
			if t := s.targets[at]; t.noticed >= 0 && !t.told {
				t.told = true
				v.Waited = append(v.Waited, now-t.noticed)
			}
		}
		v.Changed = !u.Equal(s.published)
		s.published = u
	}
	v.Unreachable = s.published
	if !s.published.IsZero() {
		v.Rescue = slices.SortedFunc(maps.Keys(s.rescue), func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	}
	s.changed, s.down, s.up = false, nil, nil
	clear(s.rescue)
	return v
}

// current returns what is unreachable now.
func (s *State) current() (u cluster.Unreachable) {
	if s.OwnLink() {
		return u
	}
	for name, n := range s.nodes {
		if n.down {
			if u.Nodes == nil {
				u.Nodes = map[string]bool{}
			}
			u.Nodes[name] = n.whole
		}
	}
	for at, t := range s.targets {
		if t.alone || t.client && t.result == Silent && slices.ContainsFunc(t.nodes, s.isDown) {
			if u.Endpoints == nil {
				u.Endpoints = map[netip.AddrPort]bool{}
			}
			u.Endpoints[at] = t.alone
		}
	}
	return u
}
