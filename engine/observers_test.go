package engine

import (
	"net/netip"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
)

// HT-16: load balancers receive more endpoints once the frontends for their traffic are in force,
// and not because the plane had nothing to do for the frontend of the health check itself. They
// receive fewer endpoints at once.
func TestHealthCheckWaitsForItsServiceHT16(t *testing.T) {
	const number = 32100
	nodePort := lb.Key{Port: 30080, Proto: lb.TCP}
	check := lb.Key{Port: number, Proto: lb.TCP}
	balanced := func() *cluster.Service {
		s := service(1)
		s.Type, s.ExternalPolicy, s.HealthCheckNodePort = cluster.TypeLoadBalancer, cluster.PolicyLocal, number
		s.Ports[0].NodePort = nodePort.Port
		return s
	}
	reported := func(r *rig) int {
		r.model.mu.Lock()
		defer r.model.mu.Unlock()
		if row := r.model.rows[check]; row != nil {
			return row.LocalEndpoints
		}
		return -1
	}
	want := func(r *rig, what string, n int) {
		t.Helper()
		r.after(time.Minute)
		if got := reported(r); got != n {
			t.Errorf("%s: load balancers see %d endpoints, want %d", what, got, n)
		}
	}
	// The plane refuses the NodePort, so load balancers learn of none of two new endpoints.
	unreachable := func(r *rig) {
		t.Helper()
		r.start()
		r.list()
		r.do(cluster.SliceSet{Slice: slice(1, 1, 0)}, cluster.ServiceSet{Service: balanced()})
		want(r, "none", 0)
		r.faulty.Refuse(nodePort)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 2)})
		want(r, "two unreachable endpoints", 0)
	}
	bubble(t, nil, func(r *rig) {
		unreachable(r)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 3)})
		want(r, "three unreachable endpoints", 0)
		r.faulty.Heal()
		want(r, "three", 3)
		r.converged()
		r.faulty.Refuse(nodePort)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 1)})
		want(r, "one is left, and the row that leads to all three", 1)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 2)})
		want(r, "one comes back", 1)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 3)}) // the last accepted state, but the frontend is in doubt
		want(r, "all are as they were", 1)
		r.do(cluster.SliceSet{Slice: slice(1, 1, 4)}, cluster.ServiceGone{Name: svcName(1)})
		want(r, "the Service is gone", -1)
		r.faulty.Heal()
		r.after(time.Hour)
		r.converged()
	})
	// The frontend of a cluster IP takes no outside traffic: its failure is no reason to leave the
	// node out.
	bubble(t, nil, func(r *rig) {
		r.start()
		r.list()
		r.do(cluster.ServiceSet{Service: balanced()})
		want(r, "none", 0)
		r.faulty.Refuse(lb.Key{Addr: svcIP(1), Port: 80, Proto: lb.TCP})
		r.do(cluster.SliceSet{Slice: slice(1, 1, 2)})
		want(r, "two", 2)
	})
	// Nor is that of another Service, which has received the NodePort meanwhile.
	bubble(t, nil, func(r *rig) {
		unreachable(r)
		moved, other := balanced(), service(2)
		moved.Ports[0].NodePort = nodePort.Port + 1
		other.Type, other.Ports[0].NodePort = cluster.TypeNodePort, nodePort.Port
		r.do(cluster.ServiceSet{Service: moved}, cluster.ServiceSet{Service: other})
		want(r, "two, at another NodePort", 2)
		r.heals()
	})
	// The same holds for frontends that a Reset had to leave out, and for requests of another
	// Service of that name meanwhile.
	bubble(t, nil, func(r *rig) {
		r.faulty.Refuse(nodePort)
		r.start()
		r.do(cluster.SliceSet{Slice: slice(1, 1, 2)}, cluster.ServiceSet{Service: balanced()})
		r.list2(balanced(), slice(1, 1, 2))
		want(r, "a Reset without the NodePort", -1)
		other := balanced()
		other.ClusterIPs = []netip.Addr{svcIP(2)}
		r.do(cluster.ServiceSet{Service: other})
		want(r, "still without the NodePort", -1)
		r.faulty.Heal()
		want(r, "all", 2)
		r.converged()
	})
}

// list2 makes the store synced with one Service.
func (r *rig) list2(s *cluster.Service, sl *cluster.Slice) {
	r.do(cluster.ServicesListed{Services: []*cluster.Service{s}}, cluster.SlicesListed{Slices: []*cluster.Slice{sl}})
}
