package lb_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"kube-proxy/lb"
	"kube-proxy/test/seedtest"
)

// TN-20: whatever the history of a Service, its backend sets share one list of endpoints if the
// endpoints are equal.
func TestSetsShareEndpoints(t *testing.T) {
	const ports, endpoints = 87, 100
	list := func() lb.Endpoints {
		out := make([]lb.Endpoint, endpoints)
		for i := range out {
			out[i] = lb.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Local: i%2 == 0}
		}
		return lb.EndpointsOf(out...)
	}
	rows := func(n int, number func(port int) uint16) (out []*lb.Frontend) {
		for i := range n {
			f := &lb.Frontend{Key: lb.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: uint16(i + 1), Proto: lb.UDP},
				Service: fmt.Sprint("a/b:", i), Kind: lb.ClusterIP}
			for from, scope := range map[lb.From]lb.Scope{lb.Pods: lb.Cluster, lb.Anywhere: lb.Local} {
				s := &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: lb.UDP, Scope: scope}}
				s.Backends.Add(number(i), list())
				f.Routes = append(f.Routes, lb.Route{From: from, Do: lb.Balance, To: s})
			}
			if f.Routes[0].From != lb.Pods {
				f.Routes[0], f.Routes[1] = f.Routes[1], f.Routes[0]
			}
			out = append(out, f)
		}
		return out
	}
	owner := lb.Owner{Name: "a/b"}
	var tab lb.Table
	for step := range 2 * ports {
		// Ports are added one by one, and then get other numbers one by one.
		tab.Replace(owner, rows(min(step+1, ports), func(port int) uint16 {
			if port < step-ports {
				return 9000
			}
			return 8000
		}))
		if lists := tab.EndpointLists(owner.Name); lists != 1 {
			t.Fatalf("step %d: %d lists of endpoints in memory, want 1", step, lists)
		}
	}
}

// Without agrees with Has for any two lists (TN-79).
func TestWithout(t *testing.T) {
	rng := rand.New(rand.NewPCG(seedtest.Of(t), 0))
	var shared lb.Endpoints
	list := func() (b lb.Backends) {
		for port := range uint16(3) {
			var all []lb.Endpoint
			for i := range 6 {
				if rng.IntN(2) == 0 {
					all = append(all, lb.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}),
						Local: rng.IntN(2) == 0})
				}
			}
			if rng.IntN(3) != 0 {
				shared = lb.EndpointsOf(all...)
			}
			if shared.Len() > 0 {
				b.Add(8080+port, shared)
			}
		}
		return b
	}
	for range 3000 {
		a, b := list(), list()
		var want []netip.AddrPort
		for x := range a.All() {
			if !b.Has(x.Addr) {
				want = append(want, x.Addr)
			}
		}
		if got := a.Without(&b); !slices.Equal(got, want) {
			t.Fatalf("%v without %v: got %v, want %v", slices.Collect(a.All()), slices.Collect(b.All()), got, want)
		}
	}
}

// Frontends that share a set still do if the table replaces it by one with the earlier endpoints.
func TestFrontendsStillShareASet(t *testing.T) {
	var table lb.Table
	table.Replace(oldest, []*lb.Frontend{long(40)})
	one := long(40)
	moved := &lb.BackendSet{ID: one.Routes[0].To.ID}
	_, endpoints := one.Routes[0].To.Backends.Shared()
	moved.Backends.Add(54, endpoints)
	one.Routes[0].To = moved
	other := *one
	other.Key.Port, other.Routes = 54, slices.Clone(one.Routes)
	table.Replace(oldest, []*lb.Frontend{one, &other})
	if a, b := table.Get(one.Key).Set(lb.Cluster), table.Get(other.Key).Set(lb.Cluster); a == moved || a != b {
		t.Errorf("the frontends have the sets\n%v and\n%v, want the same copy", a, b)
	}
}

// The owner's name takes no memory of its own, beside the names of its service ports.
func TestOwnerSharesItsName(t *testing.T) {
	var table lb.Table
	f := long(1)
	table.Replace(lb.Owner{Name: strings.Clone(oldest.Name)}, []*lb.Frontend{f})
	if name := table.Owner(f.Key).Name; name != oldest.Name || unsafe.StringData(name) != unsafe.StringData(f.Service) {
		t.Errorf("the owner %q has a string of its own", name)
	}
}
