//go:build linux

package ipvs

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
)

// drainLab is a plane with one Service of three backends, under the synctest clock.
type drainLab struct {
	served
	web ipvs.ServiceID
}

func newDrainLab(t testing.TB, proto lb.Proto) *drainLab {
	d := &drainLab{served: newServed(t)}
	d.web = ipvs.ByAddr(netip.AddrPortFrom(d.Addr(10, 1), 80), uint8(proto))
	d.table.Replace(d.service(proto, 0, 3))
	d.restart()
	return d
}

// drainTest runs a test with a drainLab.
func drainTest(t *testing.T, proto lb.Proto, test func(*testing.T, *drainLab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newDrainLab(t, proto)) })
}

// service returns a Service with n backends from pod first on; a negative n removes it.
func (d *drainLab) service(proto lb.Proto, first, n int) (lb.Owner, []*lb.Frontend) {
	var all []lb.Backend
	for i := range n {
		all = append(all, lb.Backend{Addr: d.pod(first + i)})
	}
	set := &lb.BackendSet{ID: lb.SetID{Service: "ns/web:http", Proto: proto, Scope: lb.Cluster},
		Backends: lb.BackendsOf(all...)}
	f := &lb.Frontend{Key: keyOf(d.web), Service: "ns/web:http", Kind: lb.ClusterIP,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}
	if n == 0 {
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	}
	return lb.Owner{Name: "ns/web"}, []*lb.Frontend{f}
}

func (d *drainLab) pod(i int) netip.AddrPort { return netip.AddrPortFrom(d.Addr(100, i), 8080) }

// busy gives a pod connections and packets.
func (d *drainLab) busy(pod int, active uint32, in, out uint64) {
	d.Helper()
	must(d.TB, d.ipvs.SetConns(d.web, d.pod(pod), ipvsfake.Conns{Active: active}))
	must(d.TB, d.ipvs.SetStats(d.web, d.pod(pod), ipvs.Stats{InPackets: in, OutPackets: out}))
}

// wait lets time pass, while the engine audits when Drift requests it. It calls each every second.
func (d *drainLab) wait(time_ time.Duration, each func(second int)) {
	d.Helper()
	for i := range int(time_ / time.Second) {
		time.Sleep(time.Second)
		synctest.Wait() // for what the plane does at the same time
		if each != nil {
			each(i)
		}
		select {
		case <-d.p.Drift():
			if n, err := d.p.Audit(context.Background(), false); err != nil || n != 0 {
				d.Fatalf("audit: repaired %d, %v", n, err)
			}
		default:
		}
	}
}

// weights returns the weights of the virtual server's real servers; nil without a virtual server.
func (d *drainLab) weights() map[netip.AddrPort]int32 {
	v, found := d.find(d.web)
	if !found {
		return nil
	}
	all := map[netip.AddrPort]int32{}
	for _, s := range v.Destinations {
		all[s.Addr] = s.Weight
	}
	return all
}

// want checks that pods 0, 1, … have these weights; -1 means no real server.
func (d *drainLab) want(when string, weights ...int32) {
	d.Helper()
	got := d.weights()
	if got == nil {
		d.Fatalf("%s: there is no virtual server", when)
	}
	n := 0
	for i, w := range weights {
		is, has := got[d.pod(i)]
		if has {
			n++
		}
		if !has && w >= 0 || has && is != w {
			d.Fatalf("%s: real servers are %v, want weight %d for pod %d", when, got, w, i)
		}
	}
	if n != len(got) {
		d.Fatalf("%s: real servers are %v, want %v", when, got, weights)
	}
}

// A TCP backend that leaves keeps its connections and gets no new ones; it is removed soon after
// the last of them ends (DP-34, PN-40). Without connections it is removed at the first check. When
// nothing drains, the checks end.
func TestDrainDP34(t *testing.T) {
	drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
		d.busy(2, 3, 10, 10)
		d.apply(d.service(lb.TCP, 0, 1))
		d.want("at once", 1, 0, 0)
		d.wait(firstLook+time.Second, nil)
		d.want("after the first check", 1, -1, 0)
		d.wait(20*time.Minute, func(s int) { d.busy(2, 3, uint64(20+s), uint64(20+s)) })
		d.want("after 20 minutes with connections that are used", 1, -1, 0)
		d.busy(2, 0, 0, 0)
		d.wait(lastLook+time.Second, nil)
		d.want("without connections", 1, -1, -1)
		d.wait(time.Minute, nil)
		before := d.ipvs.Messages()
		d.wait(time.Hour, nil)
		if n := d.ipvs.Messages() - before; n > 0 || len(d.p.drains) > 0 {
			t.Errorf("%d messages in an hour in which nothing drains; %d drain", n, len(d.p.drains))
		}
	})
}

// A real server that leaves right before a check for another one stays until the next: packets that
// chose it may be on their way.
func TestDrainPacketsUnderWay(t *testing.T) {
	drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
		d.busy(0, 1, 0, 0)
		d.apply(d.service(lb.TCP, 1, 2))
		d.wait(firstLook-time.Second, nil)
		time.Sleep(time.Second - time.Millisecond)
		d.apply(d.service(lb.TCP, 2, 1)) // pod 1 leaves too
		time.Sleep(time.Millisecond)
		synctest.Wait()
		<-d.p.Drift()
		must(t, only(d.p.Audit(t.Context(), false)))
		if w := d.weights(); len(w) != 3 || w[d.pod(1)] != 0 {
			t.Fatalf("a check of another real server ended a connection that had just left: %v", w)
		}
		d.busy(0, 0, 0, 0)
		d.wait(3*firstLook, nil)
		if w := d.weights(); len(w) != 1 {
			t.Errorf("still there: %v", w)
		}
	})
}

// A backend that returns gets its weight back, also with a restart in between (PN-40, #92019).
func TestDrainReturns(t *testing.T) {
	for _, restart := range []bool{false, true} {
		drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
			d.busy(2, 1, 0, 0)
			d.apply(d.service(lb.TCP, 0, 2))
			d.want("left", 1, 1, 0)
			if restart {
				d.restart()
				d.want("after a restart", 1, 1, 0)
				d.wait(time.Minute, nil)
				d.want("a minute after a restart", 1, 1, 0)
			}
			d.apply(d.service(lb.TCP, 0, 3))
			d.want("returned", 1, 1, 1)
			d.busy(2, 0, 0, 0)
			d.ipvs.Before = func(r ipvsfake.Request) error {
				if r.Command == ipvsfake.DelDest {
					t.Errorf("%s is removed", r.Destination)
				}
				return nil
			}
			d.wait(time.Hour, nil)
			d.want("an hour later", 1, 1, 1)
		})
	}
}

// The connections of a dead node keep its real server for two minutes of unanswered packets
// (PN-42). Idle ones keep it until IPVS forgets them, after --ipvs-tcp-timeout (TN-64). This is a
// bound, whatever clients do.
func TestDrainBoundPN42(t *testing.T) {
	for name, tc := range map[string]struct {
		in          bool // clients send
		idle, bound time.Duration
	}{
		"clients repeat what is lost":       {true, silent, mute},
		"no client sends":                   {false, silent, silent},
		"IPVS forgets idle ones soon":       {false, 5 * time.Minute, 5 * time.Minute},
		"IPVS remembers idle ones for long": {false, time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
				d.p.cfg.Idle = tc.idle
				d.busy(2, 5, 100, 100)
				d.apply(d.service(lb.TCP, 0, 2))
				in := func(s int) {
					if tc.in {
						d.busy(2, 5, uint64(101+s), 100)
					}
				}
				d.wait(tc.bound-time.Second, in)
				d.want("before the bound", 1, 1, 0)
				d.wait(70*time.Second, nil)
				d.want("after the bound and two checks", 1, 1, -1)
			})
		})
	}
}

// The virtual server of a removed Service stays for its connections, which continue as in other
// modes, with its address. It takes no new ones, and no other key uses it (DP-53).
func TestDrainDeletedServiceDP53(t *testing.T) {
	drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
		d.busy(1, 2, 0, 0)
		d.apply(lb.Owner{Name: "ns/web"}, nil)
		d.want("deleted", -1, 0, -1)
		if !d.devs[lb.IPv4].addrs[d.web.Addr.Addr()] {
			t.Error("its address is gone, and its connections with it")
		}
		if n := len(d.sets[setClusterIP.name(lb.IPv4)].members); n != 0 {
			t.Errorf("KUBE-CLUSTER-IP has %d members", n)
		}
		d.reset() // at an unusual moment
		d.wait(time.Minute, nil)
		d.want("with connections", -1, 0, -1)
		d.busy(1, 0, 0, 0)
		d.wait(lastLook+time.Second, nil)
		if d.weights() != nil {
			t.Error("the virtual server stays without connections")
		}
		if len(d.devs[lb.IPv4].addrs)+len(d.sets[setIPs.name(lb.IPv4)].members) > 0 {
			t.Error("the address stays without connections")
		}
		if len(d.p.l.servers)+len(d.p.l.addrs)+len(d.p.l.members) > 0 {
			t.Errorf("the ledger keeps %+v", d.p.l)
		}
	})
}

// A connection that never ends keeps the address of a removed Service for a bounded time, also
// after a restart (TN-63).
func TestDrainDeletedServiceIsBounded(t *testing.T) {
	for _, restart := range []bool{false, true} {
		drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
			d.busy(1, 1, 0, 0)
			d.apply(lb.Owner{Name: "ns/web"}, nil)
			used := func(s int) {
				if d.weights() != nil {
					d.busy(1, 1, uint64(1+s), uint64(1+s))
				}
			}
			if restart {
				d.wait(stay/2, used)
				d.restart()
			}
			d.wait(stay-time.Second, used)
			d.want("before the bound", -1, 0, -1)
			d.wait(lastLook+2*time.Second, used)
			if d.weights() != nil {
				t.Error("the virtual server is there after the bound")
			}
			if n := len(d.devs[lb.IPv4].addrs) + len(d.sets[setIPs.name(lb.IPv4)].members) +
				len(d.sets[setMarksAnywhere.name(lb.IPv4)].members); n > 0 {
				t.Errorf("%d addresses and members of it are there after the bound", n)
			}
		})
	}
}

// Connections do not keep an address that another device has: a listener there is reached at once,
// also if the device gets the address later (TN-63).
func TestDrainAtAddressOfAnotherDevice(t *testing.T) {
	for _, later := range []bool{false, true} {
		drainTest(t, lb.TCP, func(t *testing.T, d *drainLab) {
			device := func() {
				d.others = append(d.others, d.web.Addr.Addr())
				d.devs[lb.IPv4].notice(false, true)
				must(t, only(d.p.Audit(t.Context(), false)))
			}
			if !later {
				device()
			}
			d.busy(1, 1, 0, 0)
			d.apply(lb.Owner{Name: "ns/web"}, nil)
			if later {
				d.want("at an address of ours", -1, 0, -1)
				device()
				d.wait(lastLook+time.Second, nil)
			}
			if d.weights() != nil {
				t.Error("the virtual server stays at an address of another device")
			}
		})
	}
}

// UDP and SCTP leave at once (DP-34).
func TestNoDrainOfUDP(t *testing.T) {
	for _, proto := range []lb.Proto{lb.UDP, lb.SCTP} {
		drainTest(t, proto, func(t *testing.T, d *drainLab) {
			d.busy(2, 3, 0, 0)
			d.apply(d.service(proto, 0, 2))
			d.want("at once", 1, 1, -1)
			d.apply(lb.Owner{Name: "ns/web"}, nil)
			if d.weights() != nil {
				t.Errorf("%s: the virtual server stays", proto)
			}
		})
	}
}
