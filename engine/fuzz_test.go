package engine

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// story replays bytes as events and faults. Every byte string is a story.
type story struct {
	*rig
	bytes    []byte
	services map[cluster.Name]*cluster.Service
	slices   map[cluster.Name]*cluster.Slice
	had      map[string]map[netip.Addr]bool // by Service, every address that any of its slices has ever named
	release  func()
}

// universe is the number of Services; it is small, so that stories change the same Service often.
const universe = 6

func (s *story) next() int {
	if len(s.bytes) == 0 {
		return 0
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return int(b)
}

// someService is one of the Services, in one of many forms. All may claim the same load-balancer
// address; some are re-created with another age.
func (s *story) someService(i, form int) *cluster.Service {
	svc := service(i)
	svc.Created += int64(form>>6) * 100
	switch form % 6 {
	case 0:
	case 1:
		svc.Type = cluster.TypeLoadBalancer
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7")}
		svc.Ports[0].NodePort = uint16(30000 + i)
	case 2:
		svc.Type = cluster.TypeNodePort
		svc.Ports[0].NodePort = uint16(30000 + form%2)
		svc.ExternalPolicy = cluster.PolicyLocal
	case 3:
		svc.AffinitySeconds = int32(form)
		svc.InternalPolicy = cluster.PolicyLocal
	case 4:
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: "dns", Protocol: cluster.UDP, Port: 53})
		svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.8")}
	case 5:
		svc.Type = cluster.TypeLoadBalancer
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.8")}
		svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		svc.ExternalPolicy, svc.HealthCheckNodePort = cluster.PolicyLocal, uint16(30000+form%3)
	}
	return svc
}

// someSlice is one of a Service's two slices; it may also move to another Service.
func (s *story) someSlice(i, form int) *cluster.Slice {
	sl := slice(i, 1+form&3, form>>2&3)
	if form&16 != 0 {
		sl.Name.Name += "2"
	}
	if form&32 != 0 {
		sl.Service = svcName((i + 1) % universe)
	}
	if form&64 != 0 {
		sl.Ports = append(sl.Ports, cluster.SlicePort{Name: "dns", Protocol: cluster.UDP, Port: 5353})
	}
	sl.Endpoints = sl.Endpoints.Edited(func(k int, e *cluster.Endpoint) {
		if form&128 != 0 && k == 0 {
			e.Ready, e.Terminating = false, true
		}
		if k == 1 {
			e.Where = cluster.At("n2", "")
		}
	})
	return sl
}

func (s *story) step() {
	op, i := s.next(), s.next()
	name := svcName(i % universe)
	switch op % 24 {
	case 0, 1, 2:
		svc := s.someService(i%universe, s.next())
		s.services[svc.Name] = svc
		s.do(cluster.ServiceSet{Service: svc})
	case 3:
		delete(s.services, name)
		s.do(cluster.ServiceGone{Name: name})
	case 4, 5, 6:
		sl := s.someSlice(i%universe, s.next())
		s.slices[sl.Name] = sl
		s.remember(sl)
		s.do(cluster.SliceSet{Slice: sl})
	case 7:
		sl := s.someSlice(i%universe, s.next())
		delete(s.slices, sl.Name)
		s.do(cluster.SliceGone{Name: sl.Name})
	case 8:
		maps.DeleteFunc(s.services, func(n cluster.Name, _ *cluster.Service) bool { return i&128 != 0 && n == name })
		s.do(cluster.ServicesListed{Services: slices.Collect(maps.Values(s.services))})
	case 9:
		maps.DeleteFunc(s.slices, func(_ cluster.Name, sl *cluster.Slice) bool {
			return i&128 != 0 && sl.Service == name
		})
		s.do(cluster.SlicesListed{Slices: slices.Collect(maps.Values(s.slices))})
	case 10:
		s.node(i)
	case 11:
		s.do(cidr([]string{"172.16.0.0/12", "172.16.0.0/16"}[i%2]))
	case 12:
		for range 1 + i%4 {
			s.faulty.FailNext(fake.ErrInjected)
		}
	case 13:
		s.faulty.FailWith(float64(i) / 255)
	case 14:
		s.faulty.Refuse(s.someKey(i))
	case 15:
		s.faulty.Heal()
	case 16:
		s.faulty.FailNext(plane.ErrStateLost)
	case 17:
		s.faulty.PanicAt(s.someKey(i))
	case 18:
		s.plane.StealAny(i&1 != 0)
	case 19:
		s.plane.Lose(i&1 != 0)
	case 20:
		s.engine.ResolveAll()
	case 21:
		if s.release == nil {
			_, s.release = s.faulty.Block()
		} else {
			s.open()
		}
	case 22:
		s.run()
	case 23:
		s.after(time.Duration(i) * time.Duration(i) * time.Millisecond)
	}
}

func (s *story) someKey(i int) lb.Key {
	if i&64 != 0 {
		return lb.Key{Addr: netip.MustParseAddr("192.0.2.7"), Port: 80, Proto: lb.TCP}
	}
	return svcKey(i % universe)
}

func (s *story) node(i int) {
	if i == 255 {
		s.do(cluster.NodeGone{Name: nodeName})
		return
	}
	n := &cluster.Node{Name: nodeName, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i&1)})}}
	if i&2 != 0 {
		n.Zone = "z"
	}
	s.do(cluster.NodeSet{Node: n})
}

func (s *story) remember(sl *cluster.Slice) {
	of := s.had[sl.Service.String()]
	if of == nil {
		of = map[netip.Addr]bool{}
		s.had[sl.Service.String()] = of
	}
	for e := range sl.Endpoints.All() {
		of[e.Addr] = true
	}
}

// nobodyStrays checks that no packet of one Service reaches a backend of another, whatever the
// history: each frontend in force has only addresses that its own Service has named.
func (s *story) nobodyStrays() {
	for k, f := range s.plane.Frontends() {
		service, _, _ := strings.Cut(f.Service, ":")
		for _, r := range f.Routes {
			if r.To == nil {
				continue
			}
			if r.To.ID.Service != f.Service {
				s.t.Errorf("%s of %s leads to the backends of %s", k, f.Service, r.To.ID.Service)
			}
			for b := range r.To.Backends.All() {
				if !s.had[service][b.Addr.Addr()] {
					s.t.Errorf("%s of %s leads to %s, which the service has never named", k, f.Service, b.Addr)
				}
			}
		}
	}
}

func (s *story) open() {
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// listAll sends the lists of all objects.
func (s *story) listAll() {
	s.do(cluster.ServicesListed{Services: slices.Collect(maps.Values(s.services))})
	s.do(cluster.SlicesListed{Slices: slices.Collect(maps.Values(s.slices))})
}

// waits checks which events wait for the kernel (HT-04): none while the kernel refuses only some
// frontends, and all from the first event on while no write works.
func (s *story) waits() {
	s.listAll()
	for i := range universe {
		if len(s.services)>>i&1 != 0 {
			s.faulty.Refuse(svcKey(i))
		}
	}
	s.do(cluster.ServiceSet{Service: service(universe)})
	s.faulty.Refuse(svcKey(universe))
	s.after(2 * time.Minute)
	queued := s.engine.Stats().QueuedSince
	if lost := s.engine.Stats().Lost; !lost && !queued.IsZero() { // a long Reset makes the next one wait
		s.t.Errorf("only rows are refused, and something waits since %v, now %v", queued, time.Now())
	}
	s.faulty.FailWith(1)
	if queued.IsZero() {
		queued = time.Now()
	}
	s.do(cluster.ServiceSet{Service: service(universe + 1)})
	s.after(3 * time.Minute)
	if since := s.engine.Stats().QueuedSince; !since.Equal(queued) {
		s.t.Errorf("no write works since %v, and something waits since %v", queued, since)
	}
	s.faulty.Heal()
}

// FuzzIncremental: after any history, and after any half-finished write of the plane, once the
// faults have stopped the plane holds the state of a fresh start, and the observers have the same.
func FuzzIncremental(f *testing.F) {
	f.Add([]byte{})
	// Lists, a Service and its slice, half written, then deleted.
	f.Add([]byte{8, 0, 9, 0, 22, 0, 12, 0, 0, 1, 0, 4, 1, 12, 22, 0, 3, 1, 22, 0})
	// Keys in conflict, a refused one, the winner is deleted.
	f.Add([]byte{8, 0, 9, 0, 14, 64, 0, 1, 1, 0, 2, 1, 4, 1, 12, 4, 2, 12, 22, 0, 3, 1, 23, 40})
	// A panic and a lost state while blocked.
	f.Add([]byte{8, 0, 9, 0, 22, 0, 21, 0, 17, 2, 0, 2, 4, 4, 2, 77, 19, 1, 21, 0, 10, 3, 11, 0})
	// Everything fails now and then.
	f.Add([]byte{13, 128, 8, 0, 9, 0, 0, 1, 1, 0, 2, 5, 4, 1, 12, 23, 9, 3, 1, 4, 2, 140, 18, 1, 23, 20, 20, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1000 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			s := &story{
				bytes:    data,
				services: map[cluster.Name]*cluster.Service{},
				slices:   map[cluster.Name]*cluster.Slice{},
				had:      map[string]map[netip.Addr]bool{},
			}
			s.rig = newRig(t, func(c *Config) {
				if len(data)%2 == 1 {
					c.MinSyncPeriod = 100 * time.Millisecond
				}
			})
			if len(data)%3 == 1 { // pieces of one or two frontends
				s.plane.Slow(1, 4)
			}
			s.start()
			for len(s.bytes) > 0 {
				s.step()
				s.nobodyStrays()
			}
			s.faulty.Heal()
			s.open()
			s.waits()
			s.listAll()
			s.after(12 * time.Minute) // longer than every backoff, and one full audit
			s.converged()
			s.nobodyStrays()
			if st := s.engine.Stats(); st.Probes > st.Failures {
				t.Errorf("%d probes after %d failures", st.Probes, st.Failures)
			}
			if err := s.stop(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if d := &s.engine.pending.programming; len(d.open) > 0 || len(d.reset) > 0 || !d.done.isZero() {
				t.Errorf("settled, but the engine remembers changes that are not in force: %+v", d)
			}
			if t.Failed() {
				t.Logf("log:\n%s", s.log)
			}
		})
	})
}
