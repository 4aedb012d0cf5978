package engine

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/cluster"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// claimants returns Services that all claim the same ports of one external address and have
// different cluster IPs. The oldest has number first.
func claimants(first, services, ports int) []*cluster.Service {
	out := make([]*cluster.Service, services)
	for i := range out {
		s := service(first + i)
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7")}
		s.Ports = make([]cluster.ServicePort, ports)
		for p := range s.Ports {
			s.Ports[p] = cluster.ServicePort{Name: fmt.Sprint("p", p), Protocol: cluster.TCP, Port: uint16(1000 + p)}
		}
		out[i] = s
	}
	return out
}

// SV-24, TN-02: messages about conflicts are limited, whatever Services claim, and report how many
// were left out. The youngest Services come first, so that each takes all keys from the one before.
// The losses of a Service of another namespace are reported as well.
func TestFloodOfConflicts(t *testing.T) {
	var reported []Loss
	bubble(t, func(c *Config) { c.Contested = func(l Loss) { reported = append(reported, l) } }, func(r *rig) {
		r.start()
		r.list()
		const services, ports = 60, 10
		flood := claimants(1000, services, ports)
		for i := len(flood) - 1; i >= 0; i-- {
			r.do(cluster.ServiceSet{Service: flood[i]})
			r.run()
		}
		s := r.engine.Stats()
		if s.Conflicts != (services-1)*ports || s.Contested != ports {
			t.Errorf("%d conflicts counted, on %d keys; want %d and %d", s.Conflicts, s.Contested,
				(services-1)*ports, ports)
		}
		if len(reported) != ratelimit.Burst || reported[0].Keys != ports || reported[0].Key.Port != 1000 {
			t.Errorf("reported %d Services, of the first %+v; want %d, each of %d keys at once", len(reported),
				reported[:1], ratelimit.Burst, ports)
		}
		r.after(2 * ratelimit.ReportGap)
		suppressed := services - 1 - ratelimit.Burst
		if r.log.Count(fmt.Sprintf("messages=%d mostAbout=shop", suppressed)) != 1 ||
			strings.Count(r.log.String(), "\n") > ratelimit.Burst+5 {
			t.Errorf("the log does not count %d suppressed messages, or is too long:\n%s", suppressed, r.log)
		}
		// The first loss in another namespace is reported, also where the flood caused it.
		mine, theirs := service(1), service(2)
		for i, s := range []*cluster.Service{mine, theirs} {
			s.Name.Namespace, s.Created = "stranger", int64(1e6+i)
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.8")}
		}
		taker := service(3)
		taker.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.8")}
		reported = nil
		r.do(cluster.ServiceSet{Service: mine})
		r.run()
		for _, s := range []*cluster.Service{taker, theirs} {
			r.do(cluster.ServiceSet{Service: s})
			r.run()
		}
		if len(reported) != 2 || reported[0].Loser.Name != "stranger/s1" || reported[1].Loser.Name != "stranger/s2" {
			t.Errorf("beside the flood, reported %+v, want of the losses of stranger/s1 and stranger/s2", reported)
		}
		r.converged()
	})
}

// Conflicts change nothing for other Services, whatever their number. They cost the claimants no
// more than their own frontends and a logarithm.
func TestConflictsCostNoOtherService(t *testing.T) {
	type cost struct{ visited, resolved, offered, conflicts uint64 }
	measure := func(services, ports int) (all, others cost) {
		bubble(t, nil, func(r *rig) {
			r.start()
			r.do(cluster.ServicesListed{Services: append(claimants(1000, services, ports), service(1))},
				cluster.SlicesListed{Slices: []*cluster.Slice{slice(1, 1, 10)}})
			r.run()
			now := func() cost {
				s := r.engine.Stats()
				return cost{s.Visited, s.Resolved, s.Offered, s.Conflicts}
			}
			all = now()
			lines := strings.Count(r.log.String(), "\n")
			r.do(cluster.SliceSet{Slice: slice(1, 2, 10)})
			r.run()
			others = now()
			others = cost{others.visited - all.visited, others.resolved - all.resolved, others.offered - all.offered,
				others.conflicts - all.conflicts}
			if again := strings.Count(r.log.String(), "\n"); again != lines {
				t.Errorf("%d lines for a change of another Service:\n%s", again-lines, r.log)
			}
		})
		return all, others
	}
	_, few := measure(2, 2)
	many, beside := measure(101, 100) // 100 keys, 10,000 conflicts
	oneKey, besideOne := measure(2000, 1)
	if few != beside || few != besideOne {
		t.Errorf("a change of another Service costs %+v beside 2 conflicts, %+v beside 10,000, %+v beside a key with "+
			"2,000 claimants", few, beside, besideOne)
	}
	// The engine inspects a frontend when it arrives, as cluster IP and as external IP, and
	// compares it a few times.
	for _, c := range []struct {
		cost
		rows uint64
	}{{many, 2 * 101 * 100}, {oneKey, 2 * 2000}} {
		if c.visited > 5*c.rows {
			t.Errorf("%d rows were visited %d times", c.rows, c.visited)
		}
	}
}

// SV-24: a Service with an address of the service network that is not its cluster IP is the
// provisional owner of the address. A warning is logged, unless the owner arrives at the same time.
func TestProvisionalOwnerInServiceNetwork(t *testing.T) {
	var reported []ProvisionalOwner
	bubble(t, func(c *Config) { c.Lent = func(l ProvisionalOwner) { reported = append(reported, l) } }, func(r *rig) {
		r.do(cluster.CIDRsListed{CIDRs: []*cluster.ServiceCIDR{
			{Name: "k", Prefixes: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}}}})
		squatter := claimants(1, 1, 3)[0]
		squatter.ExternalIPs = []netip.Addr{svcIP(7), svcIP(6), netip.MustParseAddr("192.0.2.7")}
		r.start()
		r.do(cluster.ServiceSet{Service: squatter}, cluster.SliceSet{Slice: slice(1, 1, 1)})
		r.list()
		r.do(cluster.ServiceSet{Service: squatter}, cluster.SliceSet{Slice: slice(1, 1, 1)})
		r.run()
		if len(reported) != 1 || reported[0].Owner != "shop/s1" || reported[0].Keys != 6 ||
			reported[0].Key.String() != "172.16.0.6:1000/tcp" {
			t.Fatalf("reported %+v, want once, of six keys and the first of them", reported)
		}
		if r.log.Count(`service=shop/s1 key=172.16.0.6:1000/tcp as="external IP" keys=6`) != 1 {
			t.Errorf("the log:\n%s", r.log)
		}
		owner := claimants(7, 1, 3)[0]
		owner.ExternalIPs = nil
		late := claimants(2, 1, 3)[0] // arrives together with the owner of the address
		late.ExternalIPs = []netip.Addr{svcIP(7)}
		r.do(cluster.Batch{cluster.ServiceSet{Service: late}, cluster.ServiceSet{Service: owner},
			cluster.SliceSet{Slice: slice(7, 1, 1)}})
		r.run()
		if row := r.engine.table.Get(lb.Key{Addr: svcIP(7), Port: 1000, Proto: lb.TCP}); row.Kind != lb.ClusterIP ||
			row.Service != "shop/s7:p0" {
			t.Errorf("the owner came, and the row is\n%s", row)
		}
		if len(reported) != 1 || r.log.Count(`reason="it has it as its cluster IP"`) != 2 {
			t.Errorf("told %+v; the log:\n%s", reported, r.log)
		}
		r.converged()
		r.do(cluster.ServiceGone{Name: owner.Name})
		r.run()
		if row := r.engine.table.Get(lb.Key{Addr: svcIP(7), Port: 1000, Proto: lb.TCP}); row.Service != "shop/s1:p0" {
			t.Errorf("the owner went, and the row is\n%s", row)
		}
	})
}
