package userspace

import (
	"net/netip"
	"testing"

	"kube-proxy/lb"
)

// A change of one endpoint allocates no more in a large Service than in a small one, except for the
// list of turns. So it costs a comparison of two lists, not a table of all endpoints, which would
// take tens of milliseconds (TN-79).
func TestChangeOfOneEndpointTN79(t *testing.T) {
	allocations := func(endpoints int) float64 {
		m := newMachine()
		p, err := m.start(Config{Family: lb.IPv4})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Reset(t.Context(), &lb.Table{}); err != nil {
			t.Fatal(err)
		}
		var all []lb.Endpoint
		for i := range endpoints {
			all = append(all, lb.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
		}
		row := func(endpoints []lb.Endpoint) *lb.Frontend {
			set := &lb.BackendSet{ID: lb.SetID{Service: "a/b:c", Proto: lb.TCP, Scope: lb.Cluster}}
			set.Backends.Add(8080, lb.EndpointsOf(endpoints...))
			return &lb.Frontend{Key: lb.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: lb.TCP},
				Service: "a/b:c", Kind: lb.ClusterIP,
				Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}
		}
		rows := [2]*lb.Frontend{row(all), row(all[1:])}
		now := 0
		change := func() {
			old := rows[now]
			now = 1 - now
			if _, err := p.Apply(t.Context(), []lb.Change{{Key: old.Key, Old: old, New: rows[now]}}); err != nil {
				t.Fatal(err)
			}
		}
		change()
		return testing.AllocsPerRun(20, change)
	}
	if small, large := allocations(1000), allocations(10_000); large > small+5 {
		t.Errorf("%v allocations for a change of one of 10,000 endpoints, %v of 1,000", large, small)
	}
}
