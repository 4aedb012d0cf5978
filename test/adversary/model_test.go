package adversary_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"kube-proxy/cluster"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/test/adversary"
	"kube-proxy/test/fake"
	"kube-proxy/test/seedtest"
)

// Hundreds of tenants are added, write anything while the plane fails, loses its state and the
// process restarts, and leave; then others are added. No packet of others reaches a wrong
// destination (SV-25, TN-01), a change of another namespace has the same cost as without them, and
// when they have left nothing of them remains.
func TestTenants(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			s := seedtest.Of(t) // not in parallel: it measures the heap of the process
			synctest.Test(t, func(t *testing.T) {
				generations, tenants := 25, 100
				if testing.Short() {
					generations = 3
				}
				w := newWorld(t, f, s)
				alone := w.change(1)
				asked, least, last := 0, uint64(0), uint64(0)
				for g := range generations {
					asked += w.generation(s, g*tenants, tenants, alone)
					last = heap()
					if g == 0 {
						least = last
					}
					w.report()
					if t.Failed() {
						break
					}
				}
				if last > least+least/2+1<<20 {
					t.Errorf("the first tenants left %d KiB behind, and %d generations %d KiB", least>>10, generations,
						last>>10)
				}
				t.Logf("%d tenants, %d events, %d packets, %d lines of log, heap %d and %d KiB", generations*tenants,
					w.events, asked,
					w.log.lines.Load(), least>>10, last>>10)
			})
		})
	}
}

// generation is the life of some tenants, from the first on.
func (w *world) generation(seed uint64, first, n int, alone cost) (asked int) {
	tenants := make([]*adversary.Tenant, n)
	for i := range tenants {
		tenants[i] = tenant(seed+uint64(first+i), first+i)
	}
	for range 4 {
		for _, tn := range tenants {
			for range w.rnd.IntN(5) {
				w.do(tn.Event())
			}
			if w.rnd.IntN(20) == 0 {
				w.accident()
			}
		}
		synctest.Wait()
		w.belong()
	}
	lines, bytes := w.log.lines.Load(), w.log.bytes.Load()
	w.settle()
	w.belong()
	asked = w.packets()
	if c := w.change(first + 2); c.beyond(alone) {
		w.errorf("beside %d tenants a change costs %+v, without them %+v", n, c, alone)
	}
	// Log lines about tenants are proportional to their own actions, not to the effects on others,
	// and have a limit. A new process reports again what it finds, conflicts and provisional owners
	// up to a limit for each namespace (TN-02).
	if most := int64(w.events)/2 + 200 + int64(w.starts-1)*2*ratelimit.Burst*int64(n); lines > most ||
		bytes > 1000*most {
		w.errorf("%d lines, %d bytes of log after %d events and %d starts", lines, bytes, w.events, w.starts)
	}
	for _, tn := range tenants {
		w.do(tn.Leave()...)
		delete(w.ever, tn.Namespace)
	}
	w.settle()
	w.belong()
	asked += w.packets()
	return asked
}

// accident is a random fault of a node.
func (w *world) accident() {
	switch w.rnd.IntN(8) {
	case 0:
		w.stop()
		w.start()
	case 1:
		w.plane.Lose(true)
	case 2:
		w.plane.StealAny(true)
	case 3, 4:
		w.faulty.FailNext(fake.ErrInjected)
	case 5:
		w.faulty.FailWith(0.5)
	case 6:
		w.engine.ResolveAll()
	default:
		synctest.Wait()
	}
	w.belong()
}

// A suite that cannot fail proves nothing: it finds a policy that leaks the pods of one Service to
// another, and one that serves an address of the node.
func TestLeaksAreFound(t *testing.T) {
	stolen := &lb.BackendSet{Backends: lb.BackendsOf(lb.Backend{Addr: netip.AddrPortFrom(podAddr(7, 1, false), 8080)})}
	for _, c := range []struct {
		name string
		bad  func(*lb.Frontend)
		want string
	}{
		{"leads to the pod of another", func(f *lb.Frontend) {
			for i, r := range f.Routes {
				if r.To != nil {
					f.Routes[i].To = &lb.BackendSet{ID: r.To.ID, Backends: stolen.Backends}
				}
			}
		}, "which is no address of namespace honest3"},
		{"masquerades", func(f *lb.Frontend) {
			for i, r := range f.Routes {
				f.Routes[i].Masq = r.To != nil
			}
		}, "the oracle {Do:balance Service:honest3/web:http"},
		{"serves the node's loopback", func(f *lb.Frontend) {
			if f.Kind == lb.ClusterIP {
				f.Key.Addr = netip.MustParseAddr("127.0.0.1")
			}
		}, "honest3/web:http serves 127.0.0.1:80/tcp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := emptyWorld(t, lb.IPv4, 1)
				honest := w.resolve
				w.resolve = func(v cluster.View) []*lb.Frontend {
					rows := honest(v)
					if v.Name == honestName(3) {
						for _, f := range rows {
							c.bad(f)
						}
					}
					return rows
				}
				w.start()
				w.settleDown()
				w.belong()
				w.packets()
				if !slices.ContainsFunc(w.problems, func(p string) bool { return strings.Contains(p, c.want) }) {
					t.Errorf("no %q among %q", c.want, w.problems)
				}
			})
		})
	}
}

// cost is the cost of one change.
type cost struct{ resolved, visited, offered, changes, applies, ops, lines uint64 }

func (w *world) spent() cost {
	s := w.engine.Stats()
	return cost{s.Resolved, s.Visited, s.Offered, s.Changes, s.Applies, uint64(w.plane.Counts().Ops),
		uint64(w.log.lines.Load())}
}

// change changes an endpoint of an honest Service, in its nth form, and returns the cost.
func (w *world) change(n int) cost {
	was := w.spent()
	w.do(cluster.SliceSet{Slice: honestSlice(aside, n, w.family == lb.IPv6)})
	synctest.Wait()
	if !w.engine.Stats().Settled {
		w.errorf("a change of another tenant waits")
	}
	is := w.spent()
	return cost{is.resolved - was.resolved, is.visited - was.visited, is.offered - was.offered,
		is.changes - was.changes,
		is.applies - was.applies, is.ops - was.ops, is.lines - was.lines}
}

// beyond reports whether c is more than o in anything.
func (c cost) beyond(o cost) bool {
	return c.resolved > o.resolved || c.visited > o.visited || c.offered > o.offered || c.changes > o.changes ||
		c.applies > o.applies || c.ops > o.ops || c.lines > o.lines
}

// heap returns the memory in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (c cost) String() string {
	return fmt.Sprintf("%d resolved, %d rows visited, %d offered, %d changed in %d writes of %d operations, %d lines "+
		"logged",
		c.resolved, c.visited, c.offered, c.changes, c.applies, c.ops, c.lines)
}
