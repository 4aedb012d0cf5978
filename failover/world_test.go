package failover_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/cluster"
	. "kube-proxy/failover"
	"kube-proxy/lb"
)

// world is a simulated cluster: it answers probes as a network would, in virtual time.
type world struct {
	t     *testing.T
	store *cluster.Store
	state *State
	now   time.Duration
	// dead nodes answer nothing, nor do their endpoints; silent addresses drop packets; gone ones
	// are answered by ICMP; refusing ones by RST.
	dead     map[string]bool
	silent   map[netip.AddrPort]bool
	gone     map[netip.AddrPort]bool
	refusing map[netip.AddrPort]bool
	cut      bool // this node's link is down
	noNodes  bool // no lookup succeeds
	homes    map[netip.Addr]string
	refused  map[netip.AddrPort]bool // policy does not serve them

	events  []event
	next    time.Duration // when the state wants to be called
	probes  []sent
	lookups int
	verdict Verdict
	rescued []Endpoint
	downs   []string
	ups     []string
}

type event struct {
	at time.Duration
	do func()
}

type sent struct {
	at time.Duration
	to netip.AddrPort
}

const self = "node-a"

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: cluster.NewStore(self), dead: map[string]bool{}, silent: map[netip.AddrPort]bool{},
		gone: map[netip.AddrPort]bool{}, refusing: map[netip.AddrPort]bool{}, homes: map[netip.Addr]string{},
		refused: map[netip.AddrPort]bool{}, now: time.Minute}
	w.store.IndexEndpoints(true)
	w.store.Fold(cluster.ServicesListed{})
	w.store.Fold(cluster.SlicesListed{})
	w.state = New(table{w}, rand.New(rand.NewPCG(1, 2)).Float64)
	return w
}

type table struct{ *world }

func (x table) WithAddr(a netip.Addr, n int) []cluster.Name   { return x.store.WithAddr(a, n) }
func (x table) OnNode(node string, n int) []cluster.Name      { return x.store.OnNode(node, n) }
func (x table) View(name cluster.Name) cluster.View           { return x.store.View(name) }
func (x table) Serves(_ cluster.Name, at netip.AddrPort) bool { return !x.refused[at] }
func (w *world) nodeAddr(node string) netip.Addr              { return netip.MustParseAddr("192.168.0." + node[5:]) }
func (w *world) at(t time.Duration, do func())                { w.events = append(w.events, event{t, do}) }
func name(s string) cluster.Name                              { return cluster.Name{Namespace: s[:1], Name: s[1:]} }
func addr(s string) netip.AddrPort                            { return netip.MustParseAddrPort(s) }
func (w *world) is(at string) (alone, byNode bool) {
	return w.isOn(at, w.homes[addr(at).Addr()], lb.TCP)
}
func (w *world) isOn(at, n string, p lb.Proto) (own, node bool) {
	is, by := w.verdict.Unreachable.Has(addr(at), cluster.Protocol(p), n)
	return is && !by, is && by
}

// service adds a Service with endpoints "address@node", at TCP port 80.
func (w *world) service(svc string, endpoints ...string) {
	n := name(svc)
	w.store.Fold(cluster.ServiceSet{Service: &cluster.Service{Name: n,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []cluster.ServicePort{{Port: 80, Protocol: cluster.TCP}}}})
	var all []cluster.Endpoint
	for _, e := range endpoints {
		var a, node string
		for i, c := range e {
			if c == '@' {
				a, node = e[:i], e[i+1:]
			}
		}
		if a == "" {
			a = e
		}
		ip := netip.MustParseAddr(a)
		if _, known := w.homes[ip]; !known {
			w.homes[ip] = node
		}
		all = append(all, cluster.Endpoint{Addr: ip, Where: cluster.At(node, ""), Ready: true, Serving: true})
	}
	w.store.Fold(cluster.SliceSet{Slice: &cluster.Slice{Name: n, Service: n, Endpoints: cluster.EndpointsOf(all...),
		Ports: []cluster.SlicePort{{Port: 80, Protocol: cluster.TCP}, {Name: "dns", Port: 53, Protocol: cluster.UDP}}}})
}

// answer returns what a probe to the address finds now.
func (w *world) answer(to netip.AddrPort) Result {
	node := w.homes[to.Addr()]
	if to.Port() == 10250 || to.Port() == 10256 {
		node = fmt.Sprintf("node-%d", to.Addr().As4()[3])
	}
	switch {
	case w.cut && node != self, w.dead[node], w.silent[to]:
		return Silent
	case w.gone[to]:
		return NoRoute
	case w.refusing[to]:
		return Refuses
	}
	return Answers
}

// step takes the verdict and does what is due.
func (w *world) step() {
	due := w.state.Due(w.now)
	for _, n := range due.Lookups {
		w.lookups++
		w.at(w.now+5*time.Millisecond, func() {
			exists := len(n) > 5 && n[:5] == "node-" && !w.noNodes
			var addrs []netip.Addr
			if exists {
				addrs = []netip.Addr{w.nodeAddr(n)}
			}
			w.state.Node(w.now, n, addrs, nil, exists)
		})
	}
	for _, p := range due.Probes {
		w.probes = append(w.probes, sent{w.now, p.At})
		ended := false
		try := func() {
			if r := w.answer(p.At); r != Silent && !ended {
				ended = true
				w.at(w.now+time.Millisecond, func() { w.state.Answer(w.now, p.At, r) })
			}
		}
		try()
		if ended {
			continue
		}
		for n := range p.Tries {
			w.at(w.now+time.Duration(n)*TryAfter, try)
		}
		end := func(after time.Duration, r Result) {
			w.at(w.now+after, func() {
				if !ended {
					w.state.Answer(w.now, p.At, r)
				}
			})
		}
		end(QuietAfter, Waiting)
		end(SeriesTimeout, Silent)
	}
	w.verdict = w.merge(w.state.Verdict(w.now))
	w.next = due.Next
}

func (w *world) merge(v Verdict) Verdict {
	w.rescued = append(w.rescued, v.Rescue...)
	w.downs, w.ups = append(w.downs, v.Down...), append(w.ups, v.Up...)
	return v
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now + d
	w.step()
	for {
		next := -1
		for i, e := range w.events {
			if e.at <= end && (next < 0 || e.at < w.events[next].at) {
				next = i
			}
		}
		if wake := max(w.next, w.now+time.Millisecond); wake <= end && (next < 0 || wake < w.events[next].at) {
			w.now = wake
			w.step()
			continue
		}
		if next < 0 {
			w.now = end
			return
		}
		e := w.events[next]
		w.events = slices.Delete(w.events, next, next+1)
		w.now = max(w.now, e.at)
		e.do()
		w.step()
	}
}

// notice is a client of the Service whose first packet to the endpoint is repeated.
func (w *world) notice(svc, at string) {
	w.state.Notice(w.now, Notice{Kind: Retransmission, Proto: lb.TCP, Endpoint: addr(at)}, name(svc))
}

// limits fails if the probes exceed n in any second, or if one address is probed twice at once.
func (w *world) limits(n int) {
	w.t.Helper()
	last := map[netip.AddrPort]time.Duration{}
	for i, p := range w.probes {
		if i >= n && p.at < w.probes[i-n].at+time.Second {
			w.t.Fatalf("%d probes within %s", n+1, p.at-w.probes[i-n].at)
		}
		if t, was := last[p.to]; was && p.at == t {
			w.t.Fatalf("%s is probed twice at once", p.to)
		}
		last[p.to] = p.at
	}
}

func (w *world) probed(at string) (n int) {
	for _, p := range w.probes {
		if p.to == addr(at) {
			n++
		}
	}
	return n
}
