package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/planetest"
	"kube-proxy/test/tables"
)

var world = planetest.World{Family: lb.IPv4}

// begin makes a plane on the machine, with the table applied.
func begin(t testing.TB, m *machine, cfg Config, want *lb.Table) *Plane {
	t.Helper()
	cfg.Family = lb.IPv4
	if cfg.ExternalIPsBounded == nil {
		cfg.ExternalIPsBounded = func() bool { return true }
	}
	p, err := m.start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if len(m.socks) > 0 || len(m.holes) > 0 {
			t.Errorf("%d listeners are left; redirects without listener: %v", len(m.socks), m.holes)
		}
	})
	if _, err := planetest.ResetAll(context.Background(), p, want); err != nil {
		t.Fatal(err)
	}
	return p
}

func apply(t testing.TB, p *Plane, changes []lb.Change, _ []lb.Conflict) (written bool) {
	t.Helper()
	res, err := p.Apply(context.Background(), changes)
	if err != nil {
		t.Fatal(err)
	}
	return res.Written
}

// door returns the listener of a service port's set.
func (p *Plane) listenerOf(t testing.TB, service string, proto lb.Proto, scope lb.Scope) *fakeListener {
	t.Helper()
	s := p.services[serviceName{service, proto}]
	if s == nil || s.sets[scope] == nil || s.sets[scope].door == nil {
		t.Fatalf("%s/%s has no listener for %s", service, proto, scope)
	}
	return s.sets[scope].door.listener.(*fakeListener)
}

func ask(b relay.Balancer, n int) map[netip.AddrPort]bool {
	got := map[netip.AddrPort]bool{}
	for i := range n {
		a := b.Pick(relay.Client{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 18, 1, byte(i)}), 1)}, nil)
		got[a] = true
	}
	return got
}

// front is a frontend that forwards all clients to the backends 10.9.0.n of a service port.
func front(key, service string, affinity time.Duration, numbers ...int) *lb.Frontend {
	k, err := tables.Key(key)
	if err != nil {
		panic(err)
	}
	f := &lb.Frontend{Key: k, Service: service, Kind: lb.ClusterIP, Affinity: affinity,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}
	if k.IsNodePort() {
		f.Kind = lb.NodePort
	}
	if len(numbers) > 0 {
		f.Routes[0] = lb.Route{From: lb.Anywhere, Do: lb.Balance, To: setOf(k.Proto, service, lb.Cluster, numbers...)}
	}
	return f
}

func setOf(proto lb.Proto, service string, scope lb.Scope, numbers ...int) *lb.BackendSet {
	var all []lb.Backend
	for _, n := range numbers {
		all = append(all, lb.Backend{Addr: backend(n)})
	}
	return &lb.BackendSet{ID: lb.SetID{Service: service, Proto: proto, Scope: scope}, Backends: lb.BackendsOf(all...)}
}

func backend(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(n)}), 8080)
}

func owner(name string) lb.Owner { return lb.Owner{Name: name} }

// A change of endpoints makes no request to the kernel, whatever the number of Services, and is in
// force when Apply returns (DP-40).
func TestEndpointsAreNoWriteDP40(t *testing.T) {
	for _, own := range []bool{false, true} {
		for _, services := range []int{10, 1000} {
			m := newMachine()
			m.own = own
			want := world.Table(services, 2)
			p := begin(t, m, Config{}, want)
			want.Replace(owner("ns/x"), []*lb.Frontend{front("10.0.9.9:80/tcp", "ns/x:p", 0, 1, 2)})
			apply(t, p, []lb.Change{{Key: want.Owned("ns/x")[0].Key, New: want.Owned("ns/x")[0]}}, nil)
			calls, listeners := m.calls, len(m.socks)
			if apply2, _ := want.Replace(owner("ns/x"),
				[]*lb.Frontend{front("10.0.9.9:80/tcp", "ns/x:p", 0, 2, 3)}); apply(t, p, apply2, nil) {
				t.Error("something was written")
			}
			if m.calls != calls || len(m.socks) != listeners {
				t.Errorf("own %t, %d Services: %d calls of the redirector, %d more listeners", own, services,
					m.calls-calls, len(m.socks)-listeners)
			}
			for at, l := range m.socks {
				if at.Addr.Port() == 80 && at.Addr.Addr() == netip.MustParseAddr("10.0.9.9") || !own &&
					l == p.listenerOf(t, "ns/x:p", lb.TCP, lb.Cluster) {
					if got := ask(l.b, 10); len(got) != 2 || !got[backend(2)] || !got[backend(3)] {
						t.Errorf("clients are led to %v", got)
					}
				}
			}
		}
	}
}

// All addresses of a service port share a listener, and those of a route share it whatever other
// routes do; the rules drop what routes drop (SV-51, SV-52).
func TestListenerForEachSet(t *testing.T) {
	m := newMachine()
	cluster, local := setOf(lb.TCP, "ns/x:p", lb.Cluster, 1, 2), setOf(lb.TCP, "ns/x:p", lb.Local, 1)
	to := func(from lb.From, s *lb.BackendSet, masq bool) lb.Route {
		if s == nil {
			return lb.Route{From: from, Do: lb.Drop}
		}
		return lb.Route{From: from, Do: lb.Balance, To: s, Masq: masq}
	}
	row := func(key string, routes ...lb.Route) *lb.Frontend {
		f := front(key, "ns/x:p", 0)
		f.Routes = routes
		return f
	}
	want := &lb.Table{}
	want.Replace(owner("ns/x"), []*lb.Frontend{
		row("10.0.9.9:80/tcp", to(lb.Pods, cluster, false), to(lb.Anywhere, cluster, true)),
		row("192.0.2.1:80/tcp", to(lb.Pods, cluster, false), to(lb.Host, cluster, true), to(lb.Anywhere, local, false)),
		row("192.0.2.2:80/tcp", to(lb.Pods, cluster, false), to(lb.Host, cluster, true), to(lb.Anywhere, nil, false)),
	})
	p := begin(t, m, Config{}, want)
	if len(m.socks) != 2 {
		t.Errorf("%d listeners", len(m.socks))
	}
	text := p.redirect.(*fakeRedirector).dump(p.nameOf)
	for _, line := range []string{
		"lead 10.0.9.9:80/tcp clusterip from []: anywhere to ns/x:p/tcp/cluster\n",
		"lead 192.0.2.1:80/tcp clusterip from []: pods to ns/x:p/tcp/cluster host to ns/x:p/tcp/cluster anywhere to " +
			"ns/x:p/tcp/local\n",
		"lead 192.0.2.2:80/tcp clusterip from []: pods to ns/x:p/tcp/cluster " +
			"host to ns/x:p/tcp/cluster anywhere drop\n",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}

// A process takes over the ports of the previous one, whatever other processes opened in between,
// and takes another port for one that another program has.
func TestRestartKeepsPorts(t *testing.T) {
	m := newMachine()
	want := world.Table(20, 2)
	p := begin(t, m, Config{FirstPort: 40000, LastPort: 40099}, want)
	before := map[lb.Key][]redirect.Route{}
	for k, l := range m.leads {
		before[k] = l.Routes
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	want.Replace(world.ClusterIP(0, 0, 0))
	want.Replace(world.ClusterIP(100, 700, 2))
	for i := range 20 {
		want.Replace(owner(fmt.Sprint("a/new-", i)),
			[]*lb.Frontend{front(fmt.Sprintf("9.0.0.%d:80/tcp", i+1), fmt.Sprintf("a/new-%d:p", i), 0, 1)})
	}
	_, taken := world.ClusterIP(3, 0, 1)
	lost := taken[0].Key
	m.foreign[relay.Listening{Proto: lb.TCP, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), before[lost][0].Port)}] =
		true
	p = begin(t, m, Config{FirstPort: 40000, LastPort: 40099}, want)
	kept := 0
	for k, l := range m.leads {
		was, known := before[k]
		switch same := equalLeads(redirect.Entry{Routes: was}, redirect.Entry{Routes: l.Routes}); {
		case !known || was[0].Port == 0:
		case k == lost && (same || l.Routes[0].Port == 0):
			t.Errorf("%s has %v, which another program has", k, l.Routes)
		case k != lost && !same && want.Get(k).Routes[0].Do == lb.Balance:
			t.Errorf("%s had %v, and now %v", k, was, l.Routes)
		default:
			kept++
		}
	}
	if kept < 15 {
		t.Errorf("%d rows kept their ports", kept)
	}
	_ = p
}

// With a too small range, only the frontends without a port fail. The error names the Service, the
// range and the flag; they are served when a port is free (CF-44).
func TestRangeExhaustedCF44(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		want := &lb.Table{}
		for i := range 2 {
			want.Replace(owner(fmt.Sprint("ns/s", i)),
				[]*lb.Frontend{front(fmt.Sprintf("10.0.0.%d:80/tcp", i+1), fmt.Sprintf("ns/s%d:p", i), 0, 1)})
		}
		p := begin(t, m, Config{FirstPort: 40000, LastPort: 40001}, want)
		changes, _ := want.Replace(owner("ns/late"), []*lb.Frontend{front("10.0.0.9:80/tcp", "ns/late:p", 0, 1)})
		more, _ := want.Replace(owner("ns/none"), []*lb.Frontend{front("10.0.0.10:80/tcp", "ns/none:p", 0)})
		_, err := p.Apply(t.Context(), append(changes, more...))
		if !errors.Is(err, ErrNoPort) || !strings.Contains(err.Error(), "ns/late:p/tcp") ||
			!strings.Contains(err.Error(), "40000-40001 (--proxy-port-range)") {
			t.Errorf("error %v", err)
		}
		if _, led := m.leads[more[0].Key]; !led {
			t.Error("a row that needs no port is not in force")
		}
		// the log adds the family to each
		if n := p.Notices(); len(n) != 1 || slices.Contains(n[0].Args, any("family")) {
			t.Errorf("notices: %v", n)
		}
		res, err := p.Reset(t.Context(), want)
		if err != nil || len(res.Later) != 1 || res.Later[0] != changes[0].Key {
			t.Errorf("reset: later %v, error %v", res.Later, err)
		}
		if n := p.Notices(); len(n) != 0 {
			t.Errorf("reported again: %v", n)
		}
		apply(t, p, []lb.Change{{Key: want.Owned("ns/s0")[0].Key}}, nil)
		if _, err := p.Apply(t.Context(), changes); !errors.Is(err, ErrNoPort) ||
			!strings.Contains(err.Error(), "1 were given up") {
			t.Errorf("at once after a port was given up: %v", err)
		}
		time.Sleep(portRest)
		apply(t, p, changes, nil)
	})
}

func second[A, B any](a A, _ B) A { return a }

// Clients may keep a backend while it serves in any set of its service port, or drains (DP-50,
// SV-25), and until the Service is deleted.
func TestWhoLeftDP50(t *testing.T) {
	for _, c := range []struct {
		name   string
		to     []int // routes
		serve  []int // other serving backends; nil: the routes reach all
		serves []int
	}{
		{"one leaves", []int{2, 3}, nil, []int{2, 3}},
		{"one drains", []int{2, 3}, []int{1, 2, 3}, []int{1, 2, 3}},
		{"all but one", []int{3}, nil, []int{3}},
		{"one comes", []int{1, 2, 3, 4}, nil, []int{1, 2, 3, 4}},
	} {
		for _, proto := range []lb.Proto{lb.TCP, lb.UDP} {
			t.Run(c.name+" "+proto.String(), func(t *testing.T) {
				m := newMachine()
				key := "10.0.0.1:80/" + proto.String()
				want := &lb.Table{}
				rows := func(to, serve []int) []*lb.Frontend {
					a, b := front(key, "ns/x:p", 0, to...), front("nodeport:30080/"+proto.String(), "ns/x:p", 0, to...)
					b.Routes = a.Routes
					if serve != nil {
						a.Serving = setOf(proto, "ns/x:p", lb.Serving, serve...)
						b.Serving = a.Serving
					}
					return []*lb.Frontend{a, b}
				}
				want.Replace(owner("ns/x"), rows([]int{1, 2, 3}, nil))
				p := begin(t, m, Config{}, want)
				l := p.listenerOf(t, "ns/x:p", proto, lb.Cluster)
				wantServing := func(when string, want ...int) {
					t.Helper()
					for n := range 5 {
						if serves := l.b.Serves(backend(n)); serves != slices.Contains(want, n) {
							t.Errorf("%s: backend %d serves: %t", when, n, serves)
						}
					}
				}
				wantServing("at first", 1, 2, 3)
				apply(t, p, second(want.Replace(owner("ns/x"), rows(c.to, c.serve))), nil)
				wantServing("then", c.serves...)
				apply(t, p, second(want.Replace(owner("ns/x"), rows(c.to, nil))), nil)
				wantServing("after the drain", c.to...)
				apply(t, p, second(want.Replace(owner("ns/x"), nil)), nil)
				wantServing("when the Service is gone")
				if !l.shut || len(p.services)+len(p.rows)+p.balance.Stats().Places > 0 {
					t.Errorf("closed %t, left: %v, %v", l.shut, p.services, p.rows)
				}
			})
		}
	}
}

// NodePorts are at the node's addresses, also after those change; a loopback address only answers
// if so configured (SV-64, SV-65).
func TestNodePortAddressesSV65(t *testing.T) {
	m := newMachine()
	m.own = true
	m.addrs = []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("127.0.0.1"),
		netip.MustParseAddr("198.18.0.1")}
	want := &lb.Table{Node: lb.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12")}}}
	want.Replace(owner("ns/x"), []*lb.Frontend{front("nodeport:30080/tcp", "ns/x:p", 0, 1)})
	p := begin(t, m, Config{LocalhostNodePorts: true}, want)
	at := func(addrs ...string) {
		t.Helper()
		if len(m.socks) != len(addrs) {
			t.Errorf("%d listeners, want %v", len(m.socks), addrs)
		}
		for _, a := range addrs {
			if m.socks[relay.Listening{Proto: lb.TCP, Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 30080)}] == nil {
				t.Errorf("no listener at %s", a)
			}
		}
	}
	at("172.18.0.2", "127.0.0.1")
	m.addrs = []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("172.18.0.3")}
	if n, err := p.Audit(t.Context(), false); n != 1 || err != nil {
		t.Errorf("repaired %d, error %v", n, err)
	}
	at("172.18.0.2", "172.18.0.3")
	if err := p.SetNode(t.Context(),
		lb.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}); err != nil {
		t.Fatal(err)
	}
	at("172.18.0.2", "172.18.0.3")
	if err := p.SetNode(t.Context(), lb.Node{}); err != nil {
		t.Fatal(err)
	}
	at()
}

// If a socket can only be bound to an address of the machine, the address is added first; one that
// cannot be added only affects its own frontend.
func TestAddressesFirst(t *testing.T) {
	m := newMachine()
	m.own, m.prepared = true, map[netip.Addr]bool{}
	bad := netip.MustParseAddr("10.96.0.3")
	m.refuse = func(l redirect.Entry) bool { return l.Key.Addr == bad }
	want := new(lb.Table)
	want.Replace(owner("ns/x"), []*lb.Frontend{front("10.96.0.1:80/tcp", "ns/x:p", 0, 1)})
	p := begin(t, m, Config{}, want)
	y, z := front("10.96.0.2:80/tcp", "ns/y:p", 0, 1), front("10.96.0.3:80/tcp", "ns/z:p", 0, 1)
	res, err := p.Apply(t.Context(), []lb.Change{{Key: y.Key, New: y}, {Key: z.Key, New: z}})
	if !res.Written || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "10.96.0.3") {
		t.Errorf("written %t, %v", res.Written, err)
	}
	if len(m.socks) != 2 || len(m.leads) != 2 {
		t.Errorf("%d listeners and %d leads, want 2", len(m.socks), len(m.leads))
	}
}

// The plane knows the port from which a frontend is answered, from the return of its write until
// the frontend is deleted, also if another Service then has the key. It does not claim flows of
// other programs (DP-50).
func TestAnswers(t *testing.T) {
	m := newMachine()
	p := begin(t, m, Config{}, new(lb.Table))
	mine, others := front("10.0.9.9:53/udp", "ns/x:p", 0, 1), front("10.0.9.9:53/udp", "ns/y:p", 0, 1)
	node, idle := front("nodeport:30053/udp", "ns/x:p", 0, 1), front("10.0.9.8:53/udp", "ns/z:p", 0)
	apply(t, p, []lb.Change{{Key: mine.Key, New: mine}, {Key: node.Key, New: node}, {Key: idle.Key, New: idle}}, nil)
	from := func(service string) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("172.18.0.2"), p.listenerOf(t, service, lb.UDP, lb.Cluster).
			Addr().Port())
	}
	first := from("ns/x:p")
	if !p.Answers(mine.Key, first) || !p.Answers(node.Key, first) {
		t.Error("a row is not answered from where the proxy listens for it")
	}
	if p.Answers(mine.Key, backend(1)) || p.Answers(idle.Key, first) ||
		p.Answers(idle.Key, netip.AddrPortFrom(first.Addr(), 0)) {
		t.Error("a row is answered from elsewhere")
	}
	m.refuse = func(redirect.Entry) bool { return true }
	if _, err := p.Apply(t.Context(), []lb.Change{{Key: others.Key, New: others}}); err == nil ||
		!p.Answers(mine.Key, first) {
		t.Errorf("error %v; what the kernel leads to is not known", err)
	}
	m.refuse = nil
	apply(t, p, []lb.Change{{Key: others.Key, New: others}}, nil)
	if p.Answers(mine.Key, first) || !p.Answers(others.Key, from("ns/y:p")) || !p.Answers(node.Key, first) {
		t.Error("a key that another Service has now is answered from where it was")
	}
	apply(t, p, []lb.Change{{Key: others.Key}, {Key: node.Key}}, nil)
	if p.Answers(node.Key, first) || p.Answers(others.Key, first) {
		t.Error("what is gone is answered")
	}
}

// If the node must have an address to serve it, a tenant's external IP that may be another host's
// only affects that frontend, unless the administrator limits external IPs. The node's own
// addresses are served while the node has them. Tenants do not choose load balancers' addresses.
func TestAddressesOfOthers(t *testing.T) {
	m, bounded := newMachine(), false
	m.own = true
	vip := netip.MustParseAddr("203.0.0.9")
	m.addrs = []netip.Addr{netip.MustParseAddr("203.0.0.1"), vip}
	server, balanced, own := front("203.0.0.77:80/tcp", "evil/x:p", 0, 1), front("192.0.2.7:80/tcp", "ns/x:p", 0, 1),
		front("203.0.0.9:80/tcp", "ns/y:p", 0, 1)
	server.Kind, balanced.Kind, own.Kind = lb.ExternalIP, lb.LoadBalancer, lb.ExternalIP
	want := new(lb.Table)
	for name, f := range map[string]*lb.Frontend{"evil/x": server, "ns/x": balanced, "ns/y": own} {
		want.Replace(owner(name), []*lb.Frontend{f})
	}
	p, err := m.start(Config{Family: lb.IPv4, ExternalIPsBounded: func() bool { return bounded }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	reset := func(served ...*lb.Frontend) {
		t.Helper()
		res, err := p.Reset(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.leads) != len(served) || len(m.socks) != len(served) || len(res.Later) != 3-len(served) {
			t.Errorf("served %v, later %v, %d listeners; want %d of them served", slices.Collect(maps.Keys(m.leads)),
				res.Later, len(m.socks), len(served))
		}
		for _, f := range served {
			if _, led := m.leads[f.Key]; !led {
				t.Errorf("%s is not served", f.Key)
			}
		}
	}
	reset(balanced, own)
	_, err = p.Apply(t.Context(), []lb.Change{{Key: server.Key, New: server}})
	if err == nil || !strings.Contains(err.Error(), "evil/x:p") ||
		!strings.Contains(err.Error(), "--external-ip-cidrs") || len(m.leads) != 2 {
		t.Errorf("error %v; led %v", err, m.leads)
	}
	// The address moves to another host, as with keepalived: this node must not keep it.
	m.addrs = m.addrs[:1]
	if _, err := p.Audit(t.Context(), false); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("the node lost an address that it serves: %v", err)
	}
	reset(balanced)
	m.addrs = append(m.addrs, vip)
	if _, err := p.Audit(t.Context(), false); err != nil {
		t.Error(err)
	}
	if _, err := p.Apply(t.Context(), []lb.Change{{Key: own.Key, New: own}}); err != nil {
		t.Error(err)
	}
	bounded = true
	reset(balanced, own, server)
	bounded = false // the list is removed while the process runs
	_, err = p.Apply(t.Context(), []lb.Change{{Key: server.Key, New: server}})
	if err == nil || len(m.leads) != 2 || len(m.socks) != 2 {
		t.Errorf("error %v; led %v", err, m.leads)
	}
	// The network of pods now includes an address that was served as a load balancer's.
	if err := p.SetNode(t.Context(),
		lb.Node{Pods: lb.Detector{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}); !errors.Is(err,
		plane.ErrStateLost) {
		t.Errorf("an address served is a pod's now: %v", err)
	}
	// A tenant's external IP that is a pod's is refused, also with the administrator's list.
	bounded = true
	pods := front("10.9.0.7:80/tcp", "evil/pods:p", 0, 1)
	pods.Kind = lb.ExternalIP
	want.Node.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	reset(balanced, own, server)
	_, err = p.Apply(t.Context(), []lb.Change{{Key: pods.Key, New: pods}})
	if err == nil || !strings.Contains(err.Error(), "evil/pods:p") || len(m.leads) != 3 || len(p.services) != 3 {
		t.Errorf("error %v; led %v", err, m.leads)
	}
	// An API server's address is not added, whenever it becomes known: the node would cut itself
	// off (TN-66).
	want.Node.APIServers = []netip.Addr{balanced.Key.Addr}
	if err := p.SetNode(t.Context(), want.Node); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("the node keeps an API server's address: %v", err)
	}
	reset(server, own)
}
