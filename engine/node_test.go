package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/policy"
	"kube-proxy/test/fake"
)

func resolveDefault(v cluster.View) []*lb.Frontend { return policy.Resolve(v, settings) }

func cidr(s string) cluster.Event {
	return cluster.CIDRSet{CIDR: &cluster.ServiceCIDR{Name: "c", Prefixes: []netip.Prefix{netip.MustParsePrefix(s)}}}
}

// PR-05: nothing is written before the node has pod CIDRs, then at once; a later change takes
// effect live, and the deletion of the Node changes nothing.
func TestPodCIDRsLivePR05(t *testing.T) {
	node := func(cidrs ...netip.Prefix) cluster.Event {
		return cluster.NodeSet{Node: &cluster.Node{Name: nodeName, PodCIDRs: cidrs}}
	}
	first, second := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.7.0/24")
	bubble(t, func(c *Config) { c.Settings.DetectLocal = policy.NodeCIDR }, func(r *rig) {
		r.store.WaitForPodCIDRs()
		r.begin(1)
		r.do(node())
		r.after(4 * time.Minute)
		if c := r.plane.Counts(); c.Resets != 0 || c.Applies != 0 {
			t.Fatalf("written without pod CIDRs: %+v", c)
		}
		for _, step := range []struct {
			what string
			ev   cluster.Event
			want netip.Prefix
		}{
			{"at the start", node(first), first}, {"changed", node(second), second},
			{"the Node is gone", cluster.NodeGone{Name: nodeName}, second}, {"the Node is back", node(first), first},
		} {
			r.do(step.ev)
			r.run()
			var want lb.Node
			want.NodePorts, want.Pods.Prefixes = []netip.Prefix{lb.IPv4.Everywhere()}, []netip.Prefix{step.want}
			if dump := r.plane.Dump(); !strings.HasSuffix(dump, fmt.Sprintf("node %+v\n", want)) ||
				!r.plane.Has(svcKey(1)) {
				t.Errorf("%s: want %+v in\n%s", step.what, want, dump)
			}
		}
		if c := r.plane.Counts(); c.Resets != 1 {
			t.Errorf("%d Resets, want the first alone", c.Resets)
		}
	})
}

// A change of the node is one SetNode, or none where the plane's view of it stays the same.
func TestNodeChanges(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.start()
		r.do(cidr("172.16.0.0/16"))
		r.list()
		r.add(1)
		r.run()
		if c := r.plane.Counts(); c.SetNodes != 0 {
			t.Errorf("%d SetNodes at the start: the Reset includes the node", c.SetNodes)
		}
		r.do(cidr("172.16.0.0/12"))
		r.run()
		if c := r.plane.Counts(); c.SetNodes != 1 || c.Resets != 1 {
			t.Errorf("%+v, want one SetNode", c)
		}
		r.do(cluster.NodeSet{Node: &cluster.Node{Name: nodeName, Leaving: true}})
		r.run()
		if c := r.plane.Counts(); c.SetNodes != 1 || c.Resets != 1 {
			t.Errorf("%+v, want no more than before", c)
		}
		r.converged()

		r.faulty.FailNext(fake.ErrInjected)
		r.do(cidr("172.16.0.0/13"))
		r.run()
		r.add(2)
		r.run()
		if !r.plane.Has(svcKey(2)) {
			t.Error("a row waits for the node")
		}
		r.after(time.Second)
		if s := r.engine.Stats(); s.Resets != 1 || s.Retries != 1 {
			t.Errorf("%+v", s)
		}
		r.converged()

		r.faulty.FailNext(plane.ErrStateLost)
		r.do(cidr("172.16.0.0/14"))
		r.run()
		if s := r.engine.Stats(); s.Resets != 2 {
			t.Errorf("%+v", s)
		}
		r.converged()
	})
}

// DP-61: while the node cannot be resolved, nothing is written with wrong facts.
func TestPanicInNode(t *testing.T) {
	var sick atomic.Bool
	sick.Store(true)
	change := func(c *Config) {
		c.ResolveNode = func(f cluster.Facts) lb.Node {
			if sick.Load() {
				panic("node is sick")
			}
			return policy.ResolveNode(f, settings)
		}
	}
	bubble(t, change, func(r *rig) {
		r.start()
		r.list()
		r.add(1)
		r.after(time.Minute)
		if c := r.plane.Counts(); c.Resets != 0 {
			t.Errorf("%+v: written without a node", c)
		}
		sick.Store(false)
		r.after(lastDelay)
		r.converged()
		sick.Store(true)
		r.do(cidr("172.16.0.0/12"))
		r.add(2)
		r.run()
		if !r.plane.Has(svcKey(2)) || r.engine.Stats().Settled {
			t.Error("want the row written and the engine not settled")
		}
		sick.Store(false)
		r.after(lastDelay)
		r.converged()
		if n := r.log.Count("Failed to resolve the Node"); n != 1 {
			t.Errorf("%d lines, want 1", n)
		}
	})
}

// Drift is repaired at once where it is signalled, and by the full audit where it is not.
func TestAudit(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin(1, 2)
		r.plane.Steal(svcKey(1), true)
		r.run()
		if s := r.engine.Stats(); s.Repaired != 1 || s.Audits != 1 ||
			r.log.Count("Repaired objects that other programs had changed") != 1 {
			t.Errorf("after signalled drift: %+v\n%s", s, r.log)
		}
		r.converged()
		r.plane.Steal(svcKey(2), false)
		r.after(4 * time.Minute)
		if s := r.engine.Stats(); s.Audits != 1 {
			t.Errorf("%d audits after 4 minutes, want 1", s.Audits)
		}
		r.after(100 * time.Second) // 5 min and a tenth
		if s := r.engine.Stats(); s.Repaired != 2 || s.Audits != 2 {
			t.Errorf("after the full audit: %+v", s)
		}
		r.converged()
		r.after(time.Hour)
		if s := r.engine.Stats(); s.Audits < 12 || s.Audits > 16 {
			t.Errorf("%d audits in an hour", s.Audits)
		}
	})
}

// A program that undoes our work all the time costs at most ten audits a second. The log has one
// line at once, then one a minute with the number of repairs. Full audits are off: one just before
// a line would delay the next repair by driftGap, and so move the lines.
func TestDriftStorm(t *testing.T) {
	bubble(t, func(c *Config) { c.AuditPeriod = -1 }, func(r *rig) {
		r.begin(1)
		for range 1000 {
			r.plane.Steal(svcKey(1), true)
			r.after(10 * time.Millisecond)
		}
		if s := r.engine.Stats(); s.Audits < 90 || s.Audits > 101 {
			t.Errorf("%d audits in 10 s", s.Audits)
		}
		for range 590 {
			r.plane.Steal(svcKey(1), true)
			r.after(time.Second)
		}
		if n := r.log.Count("Repaired objects that other programs had " +
			"changed"); n != 10 || r.log.Count("objects=60\n") != 8 || r.log.Count("objects=1\n") != 1 {
			t.Errorf("%d lines in ten minutes, want 10:\n%s", n, r.log)
		}
		r.converged()
	})
}

// A program that undoes our work all the time does not make new changes wait for MinSyncPeriod
// (DP-60).
func TestDriftStormStarvesNoService(t *testing.T) {
	bubble(t, func(c *Config) { c.MinSyncPeriod = time.Second }, func(r *rig) {
		r.start()
		r.list()
		r.add(1)
		r.after(3 * time.Second)
		for i := range 100 {
			if i == 10 {
				r.add(2)
			}
			r.plane.Steal(svcKey(1), true)
			r.after(50 * time.Millisecond)
		}
		if s := r.engine.Stats(); s.Pending != 0 {
			t.Errorf("a change waits since 4.5 s: %+v", s)
		}
	})
}

// A failed audit is retried and forces no Reset.
func TestAuditFails(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin(1)
		r.faulty.FailNext(fake.ErrInjected, fake.ErrInjected)
		r.plane.Steal(svcKey(1), true)
		r.run()
		if r.engine.Stats().Settled {
			t.Error("settled with an audit to do")
		}
		r.after(time.Second)
		if s := r.engine.Stats(); s.Repaired != 1 || s.Resets != 1 || s.Audits != 3 ||
			r.log.Count("Audit failed") != 1 {
			t.Errorf("%+v\n%s", s, r.log)
		}
		r.converged()
	})
}

// If a program removes everything all the time, the engine writes everything at most ten times a
// second, and again soon after the end; the log has a line a minute.
func TestLossStorm(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.begin(1)
		before := r.engine.Stats().Resets
		for range 9000 {
			r.plane.Lose(true)
			r.after(10 * time.Millisecond)
		}
		if n := r.engine.Stats().Resets - before; n < 800 || n > 901 {
			t.Errorf("%d resets in 90 s", n)
		}
		if n := r.log.Count("rewriting everything"); n != 2 {
			t.Errorf("%d lines about it, want 2", n)
		}
		if n := r.log.Count("Compared and wrote all frontends"); n != 3 {
			t.Errorf("%d lines about a reset, want that of the start and two more", n)
		}
		r.after(driftGap)
		r.converged()
	})
}

// Removing the whole table is a bigger change than removing an element. The engine counts and logs
// it as such (MT EXT), once the rules are restored. State that the plane lost by itself, in a
// write, causes a Reset too, but is not attributed to another program.
func TestStateLostToOthers(t *testing.T) {
	var audits []Write
	bubble(t, func(c *Config) {
		c.AuditPeriod = time.Minute
		c.Written = func(w Write) {
			if w.Verb == "audit" && w.Changes > 0 {
				audits = append(audits, w)
			}
		}
	}, func(r *rig) {
		r.begin()
		r.plane.Lose(true) // without frontends the table itself is missing
		r.run()
		if s := r.engine.Stats(); s.Repaired != 1 || len(audits) != 1 || audits[0].Changes != 1 ||
			audits[0].Err != nil {
			t.Errorf("%d repaired, audits %+v after an empty table was removed, want 1", s.Repaired, audits)
		}
		r.add(1)
		r.add(2)
		r.after(time.Second)
		r.faulty.FailNext(fmt.Errorf("confused: %w", plane.ErrStateLost))
		r.do(cluster.SliceSet{Slice: slice(1, 1, 7)})
		r.after(time.Second)
		if s := r.engine.Stats(); s.Repaired != 1 || len(audits) != 1 || s.Resets != 3 || s.Probes != 0 {
			t.Errorf("%+v, audits %+v after a write lost the state: others did nothing", s, audits)
		}
		r.converged()
		r.plane.Lose(true)
		r.after(time.Second)
		if s := r.engine.Stats(); s.Repaired != 3 || len(audits) != 2 || audits[1].Changes != 2 {
			t.Errorf("%d repaired, audits %+v after a table of 2 rows was removed", s.Repaired, audits)
		}
		r.after(10 * time.Minute)
		if s := r.engine.Stats(); s.Repaired != 3 || len(audits) != 2 {
			t.Errorf("%d repaired, audits %+v though nothing happened since", s.Repaired, audits)
		}
		r.converged()
	})
}

// nodeReported is an observer that records the order of its calls.
type nodeReported struct {
	mu  sync.Mutex
	got []string
}

func (o *nodeReported) Applied(changes []lb.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, fmt.Sprintf("%d rows", len(changes)))
}

func (o *nodeReported) NodeApplied(n lb.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.got = append(o.got, fmt.Sprint("node ", n.ServiceCIDRs))
}

// Observers that implement NodeObserver receive the node after the plane has accepted it, not
// before, and ahead of the frontends of a Reset.
func TestNodeIsReported(t *testing.T) {
	var o nodeReported
	bubble(t, func(c *Config) { c.Observers = append(c.Observers, &o) }, func(r *rig) {
		want := func(what string, lines ...string) {
			t.Helper()
			o.mu.Lock()
			defer o.mu.Unlock()
			if !slices.Equal(o.got, lines) {
				t.Errorf("%s: reported %q, want %q", what, o.got, lines)
			}
			o.got = nil
		}
		r.start()
		r.do(cidr("172.16.0.0/16"))
		r.run()
		want("before the first write")
		r.do(cluster.ServicesListed{Services: []*cluster.Service{service(1)}},
			cluster.SlicesListed{Slices: []*cluster.Slice{slice(1, 1, 1)}})
		r.run()
		want("the Reset", "node [172.16.0.0/16]", "1 rows")
		r.do(cidr("172.16.0.0/15"))
		r.run()
		want("SetNode", "node [172.16.0.0/15]")
		r.faulty.FailNext(fake.ErrInjected)
		r.do(cidr("172.16.0.0/14"))
		r.run()
		want("SetNode fails")
		r.after(time.Second)
		want("the retry", "node [172.16.0.0/14]")
		r.faulty.FailNext(plane.ErrStateLost)
		r.do(cidr("172.16.0.0/13"))
		r.run()
		want("the Reset after a loss", "node [172.16.0.0/13]")
	})
}
