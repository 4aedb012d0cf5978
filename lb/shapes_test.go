package lb_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/cputest"
)

// length is the number of endpoints and of source ranges of the Services below.
const length = 16_384

// manyAddresses returns the frontends of one service port at n addresses, which share their sets.
func manyAddresses(n int) (fronts []*lb.Frontend) {
	one := long(length)
	_, endpoints := one.Serving.Backends.Shared()
	one.Routes[0].To.Backends.Add(54, endpoints)
	one.Routes[0].To.Backends.Add(55, lb.EndpointsOf(endpoints.At(0)))
	for i := range n {
		f := *one
		f.Key.Addr = netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		fronts = append(fronts, &f)
	}
	return fronts
}

// manyPorts returns the frontends of n service ports, whose sets share their endpoints.
func manyPorts(n int) (fronts []*lb.Frontend) {
	one := long(length)
	_, endpoints := one.Serving.Backends.Shared()
	for i := range n {
		f := &lb.Frontend{Key: one.Key, Service: fmt.Sprint("ns/m:p", i), Kind: one.Kind, Sources: one.Sources}
		f.Key.Port = uint16(1 + i)
		to := &lb.BackendSet{ID: lb.SetID{Service: f.Service, Proto: lb.UDP, Scope: lb.Cluster}}
		to.Backends.Add(80, endpoints)
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: to}}
		fronts = append(fronts, f)
	}
	return fronts
}

// A Service costs the sum of its frontends, endpoints and source ranges, not their product: when it
// is new, when it comes again, and when all frontends change, but not their sets (TN-20).
func TestManyFrontendsAreLinear(t *testing.T) {
	first := func(fronts []*lb.Frontend) func() {
		return func() {
			var table lb.Table
			table.Replace(oldest, fronts)
			if table.Len() != len(fronts) {
				t.Error(table.Refused(oldest.Name))
			}
		}
	}
	again := func(a, b []*lb.Frontend, changes int) func() {
		var table lb.Table
		table.Replace(oldest, a)
		return func() {
			a, b = b, a
			if got, _ := table.Replace(oldest, a); len(got) != changes {
				t.Errorf("%d changes, want %d", len(got), changes)
			}
		}
	}
	affine := func(fronts []*lb.Frontend) []*lb.Frontend {
		for _, f := range fronts {
			f.Affinity = time.Minute
		}
		return fronts
	}
	for name, cost := range map[string]func(n int) func(){
		"new ports":        func(n int) func() { return first(manyPorts(n)) },
		"new addresses":    func(n int) func() { return first(manyAddresses(n)) },
		"the same again":   func(n int) func() { return again(manyAddresses(n), manyAddresses(n), 0) },
		"another affinity": func(n int) func() { return again(manyAddresses(n), affine(manyAddresses(n)), n) },
	} {
		const many = 256
		if ratio := cputest.Ratio(cost(1), cost(many)); ratio > many/8 {
			t.Errorf("%s: %d frontends cost %.0f times as much as one", name, many, ratio)
		}
	}
}

// Frontends are found by key, however many the Service has.
func TestManyKeysAreLinear(t *testing.T) {
	cost := func(n int) func() {
		var fronts []*lb.Frontend
		for i := range n {
			fronts = append(fronts, row(oldest, lb.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: uint16(1 + i),
				Proto: lb.TCP}))
		}
		return func() {
			var table lb.Table
			table.Replace(oldest, fronts)
			table.Replace(oldest, fronts)
		}
	}
	if ratio := cputest.Ratio(cost(100), cost(3200)); ratio > 160 { // 32 is linear, 1024 the square
		t.Errorf("32 times as many frontends cost %.0f times as much", ratio)
	}
}
