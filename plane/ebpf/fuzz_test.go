//go:build linux

package ebpf

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/ebpf/bpf"
)

// wild makes random tables at few addresses and ports, so that they meet: those of Services, of the
// node and of endpoints.
type wild struct {
	*rand.Rand
	family lb.Family
}

// addr is one of n addresses of a network: 10 has Services, 100 pods and 192 the node, whose first
// address is the loopback.
func (w wild) addr(net byte, n int) netip.Addr {
	i := byte(w.IntN(n))
	switch {
	case net == 192 && i == 0 && w.family == lb.IPv4:
		return netip.MustParseAddr("127.0.0.1")
	case net == 192 && i == 0:
		return netip.IPv6Loopback()
	case w.family == lb.IPv4:
		return netip.AddrFrom4([4]byte{net, 0, 0, i + 1})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: net, 15: i + 1})
}

// own is an address that a program may take for the node's: one of the node, another loopback
// address, or the unspecified one. That of the other family has the same words as a key without
// an address.
func (w wild) own() netip.Addr {
	switch w.IntN(4) {
	case 0:
		return w.family.Everywhere().Addr()
	case 1:
		return netip.IPv6Unspecified()
	case 2:
		return netip.MustParseAddr("127.9.9.9")
	}
	return w.addr(192, 3)
}

func (w wild) port() uint16 { return uint16(8080 + w.IntN(3)) }

func (w wild) proto() lb.Proto { return []lb.Proto{lb.TCP, lb.TCP, lb.UDP, lb.SCTP}[w.IntN(4)] }

// key is one of a frontend.
func (w wild) key() (lb.Key, lb.Kind) {
	k := lb.Key{Port: w.port(), Proto: w.proto()}
	switch w.IntN(6) {
	case 0, 1:
		return k, lb.NodePort
	case 2:
		k.Addr = w.addr(192, 3)
		return k, lb.ExternalIP
	case 3:
		k.Addr = w.addr(100, 12)
		return k, lb.LoadBalancer
	}
	k.Addr = w.addr(10, 4)
	return k, lb.ClusterIP
}

// service is a random Service, whose frontends share their sets.
func (w wild) service(name string) (lb.Owner, []*lb.Frontend) {
	sets := map[lb.SetID]*lb.BackendSet{}
	var fronts []*lb.Frontend
	for range w.IntN(5) {
		k, kind := w.key()
		f := &lb.Frontend{Key: k, Kind: kind, Service: name + ":p", Affinity: time.Duration(w.IntN(2)) * time.Hour}
		for _, from := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
			if from == lb.Anywhere || w.IntN(2) == 0 {
				f.Routes = append(f.Routes, w.route(from, f, sets))
			}
		}
		if kind != lb.NodePort && w.IntN(6) == 0 {
			a := w.addr(100, 12)
			f.Sources = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		}
		if kind == lb.NodePort && k.Proto == lb.TCP && w.IntN(6) == 0 {
			f.Affinity, f.Kind, f.Routes = 0, lb.HealthCheck, []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}
		}
		fronts = append(fronts, f)
	}
	return lb.Owner{Name: name}, fronts
}

func (w wild) route(from lb.From, f *lb.Frontend, sets map[lb.SetID]*lb.BackendSet) lb.Route {
	r := lb.Route{From: from, Do: []lb.Action{lb.Balance, lb.Balance, lb.Balance, lb.Reject, lb.Drop}[w.IntN(5)]}
	if r.Do != lb.Balance {
		return r
	}
	id := lb.SetID{Service: f.Service, Proto: f.Key.Proto, Scope: []lb.Scope{lb.Cluster, lb.Local}[w.IntN(2)]}
	if sets[id] == nil {
		at := map[netip.Addr]bool{}
		for range 1 + w.IntN(8) {
			at[w.addr(100, 12)] = true
		}
		var pods []lb.Endpoint
		for _, a := range slices.SortedFunc(maps.Keys(at), netip.Addr.Compare) {
			pods = append(pods, lb.Endpoint{Addr: a})
		}
		sets[id] = &lb.BackendSet{ID: id}
		sets[id].Backends.Add(w.port(), lb.EndpointsOf(pods...))
	}
	r.Masq, r.To = w.IntN(3) == 0, sets[id]
	return r
}

// oracle is what the programs have to do with a destination, from the table alone.
type oracle struct {
	table *lb.Table
	node  map[netip.Addr]bool // its addresses, and whether they answer NodePorts
}

// row returns the frontend of a destination; nil for none.
func (o oracle) row(host bool, k lb.Key) *lb.Frontend {
	f := o.table.Get(k)
	if f == nil && o.node[k.Addr] && (host || !k.Addr.IsLoopback()) {
		f = o.table.Get(lb.Key{Port: k.Port, Proto: k.Proto})
	}
	if f == nil || f.Kind == lb.HealthCheck {
		return nil
	}
	return f
}

// route returns what a client meets there; the zero route where the packet path serves.
func (o oracle) route(host bool, f *lb.Frontend) lb.Route {
	if _, own := o.node[f.Key.Addr]; own || len(f.Sources) > 0 || !host && f.Kind == lb.ExternalIP {
		return lb.Route{}
	}
	for _, r := range f.Routes {
		if r.From == lb.Anywhere || r.From == lb.Host && host ||
			r.From == lb.Pods && !host && !o.table.Node.Pods.IsZero() {
			if !host && r.Masq && f.Kind == lb.ClusterIP {
				return lb.Route{}
			}
			return r
		}
	}
	return lb.Route{}
}

// wrong says how an answer of the program differs from the table's; "" if it does not.
func (o oracle) wrong(host bool, k lb.Key, a bpf.LBQuestion) string {
	f := o.row(host, k)
	if k.Proto == lb.SCTP {
		f = nil
	}
	if (f != nil) != (a.Found != 0) {
		return fmt.Sprintf("the table's frontend is %v", f)
	}
	if f == nil {
		return ""
	}
	r := o.route(host, f)
	if want := map[lb.Action]uint32{lb.Reject: 1, lb.Drop: 2}[r.Do]; a.Refuses != want {
		return fmt.Sprintf("it refuses %d, want %d", a.Refuses, want)
	}
	if r.To == nil {
		if a.Set != 0 {
			return "the packet path serves it"
		}
		return ""
	}
	free := 0
	for b := range r.To.Backends.All() {
		if o.row(true, lb.Key{Addr: b.Addr.Addr(), Port: b.Addr.Port(), Proto: k.Proto}) == nil {
			free++
		}
	}
	at := placeOf(a.Backend.Addr, a.Backend.Port)
	switch n := r.To.Backends.Len(); {
	case a.Set == 0 || int(a.Count) != n:
		return fmt.Sprintf("set %d has %d backends, want %d", a.Set, a.Count, n)
	case a.Why == uint32(byEndpoint) && free < n:
		return ""
	case a.Why != 0:
		return "it passes: " + passages[a.Why].words
	case !r.To.Backends.Has(at) || a.Backend.Set != a.Set:
		return fmt.Sprintf("%s of set %d is no backend of set %d", at, a.Backend.Set, a.Set)
	case o.row(true, lb.Key{Addr: at.Addr(), Port: at.Port(), Proto: k.Proto}) != nil:
		return fmt.Sprintf("the backend %s is a frontend too", at)
	}
	return ""
}

// loaded loads maps and programs of a family that are attached nowhere.
func loaded(tb testing.TB, f lb.Family) *kernel {
	tb.Helper()
	k := &kernel{family: f}
	var err error
	if k.obj, err = load(f, "", false); err != nil {
		tb.Fatal(err)
	}
	if err := k.openTables(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { k.close() })
	if err := put(k.obj.Config, bpf.LBSettings{On: 1}); err != nil {
		tb.Fatal(err)
	}
	return k
}

// FuzzPrograms: after random changes of random tables the programs, as the kernel runs them, answer
// for random destinations what an oracle says from the table (EB-05, EB-53).
func FuzzPrograms(f *testing.F) {
	kernels := map[lb.Family]*kernel{lb.IPv4: loaded(f, lb.IPv4), lb.IPv6: loaded(f, lb.IPv6)}
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		for family, k := range kernels {
			w := wild{rand.New(rand.NewPCG(seed, 81)), family}
			o := oracle{&lb.Table{}, map[netip.Addr]bool{}}
			if w.IntN(3) > 0 {
				o.table.Node.Pods.Prefixes = []netip.Prefix{netip.PrefixFrom(w.addr(100, 1), 8)}
			}
			for range 2 {
				o.node[w.addr(192, 3)] = w.IntN(4) > 0
			}
			if err := prune(k.obj.Addresses, func([4]uint32, uint8) bool { return true }); err != nil {
				t.Fatal(err)
			}
			for a, answers := range o.node {
				if err := k.obj.Addresses.Put(addrOf(a), flag(answers)); err != nil {
					t.Fatal(err)
				}
			}
			have, err := k.read() // of the run before
			if err != nil {
				t.Fatal(err)
			}
			st := newState(o.table.Node)
			b := st.differ(have)
			for range 6 {
				for range 1 + w.IntN(6) {
					owner, fronts := w.service(fmt.Sprint("n/s", w.IntN(8)))
					changes, _ := o.table.Replace(owner, fronts)
					if refused := o.table.Refused(owner.Name); len(refused) > 0 {
						t.Fatalf("the table refuses %v", refused)
					}
					for _, c := range changes {
						st.change(b, c.Key, c.New)
					}

				}
				if err := k.write(b); err != nil {
					t.Fatal(err)
				}
				b = &batch{}
				for range 60 {
					w.ask(t, k, st, o)
				}
			}
		}
	})
}

// ask asks about a random destination, where the client may remember a backend.
func (w wild) ask(t *testing.T, k *kernel, st *state, o oracle) {
	t.Helper()
	to, _ := w.key()
	if to.IsNodePort() {
		to.Addr = w.own()
	}
	host := w.IntN(2) == 0
	q := bpf.LBQuestion{Netns: 1, Client: ofPods, To: frontOf(to)}
	if host {
		q.Client = ofHost
	}
	remembers := w.remembers(t, k, st, o, host, to)
	a, err := k.ask(q)
	if err != nil {
		t.Fatal(err)
	}
	wrong := o.wrong(host, to, a)
	if again, err := k.ask(q); err != nil {
		t.Fatal(err)
	} else if wrong == "" && a.Why == uint32(byEndpoint) && again.Why != a.Why {
		wrong = "the next connection does not pass"
	}
	if got := placeOf(a.Backend.Addr, a.Backend.Port); wrong == "" && remembers.IsValid() &&
		(a.Remembered != 1 || got != remembers) {
		wrong = fmt.Sprintf("the client remembers %s", remembers)
	} else if wrong == "" && !remembers.IsValid() && a.Remembered != 0 {
		wrong = "the client remembers nothing"
	}
	if wrong != "" {
		t.Fatalf("%s, host %v: %+v, but %s\n%s", to, host, a, wrong, o.table)
	}
}

// remembers has the client remember a backend of the destination's set, or one of another set, or
// for a time that is over. It returns the backend that counts, if any.
func (w wild) remembers(t *testing.T, k *kernel, st *state, o oracle, host bool, to lb.Key) (at netip.AddrPort) {
	t.Helper()
	var all bpf.LBChoices
	f := o.row(host, to)
	if f != nil && f.Affinity > 0 && w.IntN(2) == 0 {
		if r := o.route(host, f); r.To != nil && to.Proto != lb.SCTP {
			s := st.sets[r.To.ID]
			i, c := w.IntN(len(s.backends)), bpf.LBChoice{Until: math.MaxUint64, Set: s.number}
			c.Backend, at = s.backends[i], s.order.At(&s.list, i)
			switch w.IntN(4) {
			case 0:
				c.Until, at = 1, netip.AddrPort{}
			case 1:
				c.Backend, at = math.MaxUint32, netip.AddrPort{}
			}
			all.Of[(int(s.number)+w.IntN(4))%len(all.Of)] = c
		}
	}
	if err := k.obj.Affinity.Put(uint64(1), all); err != nil {
		t.Fatal(err)
	}
	return at
}
