package lb_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"kube-proxy/lb"
)

// long returns a frontend of UDP with n backends in each of its sets, and n source ranges.
func long(n int) *lb.Frontend {
	f := &lb.Frontend{Key: lb.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 53, Proto: lb.UDP},
		Service: "ns/m:dns", Kind: lb.LoadBalancer, Affinity: time.Hour, Serving: longSet(n, lb.Serving),
		Routes: []lb.Route{
			{From: lb.Pods, Do: lb.Balance, To: longSet(n, lb.Cluster)},
			{From: lb.Anywhere, Do: lb.Balance, Masq: true, To: longSet(n, lb.Local)},
		}}
	for i := range n {
		f.Sources = append(f.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
	}
	return f
}

func longSet(n int, scope lb.Scope) *lb.BackendSet {
	all := make([]lb.Endpoint, n)
	for i := range all {
		all[i] = lb.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Local: scope == lb.Local}
	}
	s := &lb.BackendSet{ID: lb.SetID{Service: "ns/m:dns", Proto: lb.UDP, Scope: scope}}
	s.Backends.Add(53, lb.EndpointsOf(all...))
	return s
}

// Whatever differs between two frontends is a change of the table, with short lists and with long
// ones, whose comparison is remembered.
func TestEveryDifferenceIsAChange(t *testing.T) {
	differences := map[string]func(*lb.Frontend){
		"service":     func(f *lb.Frontend) { f.Service = "ns/m:other" },
		"kind":        func(f *lb.Frontend) { f.Kind = lb.ExternalIP },
		"affinity":    func(f *lb.Frontend) { f.Affinity = time.Minute },
		"destination": func(f *lb.Frontend) { f.PreserveDestination = true },
		"a source":    func(f *lb.Frontend) { f.Sources[0] = netip.MustParsePrefix("9.0.0.0/24") },
		"fewer sources": func(f *lb.Frontend) {
			f.Sources = f.Sources[1:]
		},
		"fewer routes":  func(f *lb.Frontend) { f.Routes = f.Routes[1:] },
		"route source":  func(f *lb.Frontend) { f.Routes[0].From = lb.Host },
		"action":        func(f *lb.Frontend) { f.Routes[0] = lb.Route{From: lb.Pods, Do: lb.Drop} },
		"masquerade":    func(f *lb.Frontend) { f.Routes[0].Masq = true },
		"other set":     func(f *lb.Frontend) { f.Routes[0].To = f.Routes[1].To },
		"a backend":     func(f *lb.Frontend) { f.Routes[1].To = longSet(f.Routes[1].To.Backends.Len()+1, lb.Local) },
		"no serving":    func(f *lb.Frontend) { f.Serving = nil },
		"fewer serving": func(f *lb.Frontend) { f.Serving = longSet(f.Serving.Backends.Len()-1, lb.Serving) },
		"the port of a set": func(f *lb.Frontend) {
			_, endpoints := f.Serving.Backends.Shared()
			f.Serving = &lb.BackendSet{ID: f.Serving.ID}
			f.Serving.Backends.Add(54, endpoints)
		},
	}
	for _, n := range []int{2, 16, 17, 40} {
		for name, differ := range differences {
			t.Run(fmt.Sprintf("%d/%s", n, name), func(t *testing.T) {
				was, same, other := long(n), long(n), long(n)
				differ(other)
				var compared lb.Comparison
				for range 2 { // the second time from memory
					if !was.Equal(same) || !compared.Equal(was, same) {
						t.Error("a frontend differs from an equal one")
					}
					if was.Equal(other) || other.Equal(was) || compared.Equal(was, other) {
						t.Error("the frontends are equal")
					}
				}
				if name == "service" {
					return // of another service port, with its own sets
				}
				var table lb.Table
				table.Replace(oldest, []*lb.Frontend{was})
				if changes, _ := table.Replace(oldest, []*lb.Frontend{same}); len(changes) != 0 {
					t.Errorf("an equal frontend makes the changes %v", changes)
				}
				if changes, _ := table.Replace(oldest, []*lb.Frontend{other}); len(changes) != 1 ||
					!changes[0].New.Equal(other) || table.Get(was.Key) != changes[0].New {
					t.Errorf("changes %v, refused %v, want the other frontend", changes, table.Refused(oldest.Name))
				}
			})
		}
	}
}

// Replace does not change the frontends that it gets, though it shares equal sets among them.
func TestReplaceLeavesItsArguments(t *testing.T) {
	for name, routes := range map[string][]lb.Route{"balances": long(40).Routes, "drops": {{From: lb.Anywhere,
		Do: lb.Drop}}} {
		var table lb.Table
		table.Replace(oldest, []*lb.Frontend{long(40)})
		f := long(40)
		f.Routes = routes
		f.Affinity = 0
		before, serving := slices.Clone(routes), f.Serving
		table.Replace(oldest, []*lb.Frontend{f})
		if f.Serving != serving || !slices.Equal(f.Routes, before) {
			t.Errorf("%s: the frontend that the caller holds has other sets now", name)
		}
		if in := table.Get(f.Key); in == f || in.Serving == serving || !in.Equal(f) {
			t.Errorf("%s: the table has\n%swant an equal frontend with the earlier sets", name, in)
		}
	}
}
