package inspect

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/trace"
)

// Queries report that the namespace of a Service is over its limit, and which parts of the Service
// are left out (TN-13).
func TestServiceOverItsLimit(t *testing.T) {
	w := newWorld()
	w.add("shop", "old", "10.96.0.1", 3, 3)
	w.add("shop", "young", "10.96.0.2", 3, 3)
	w.table.Replace(lb.Owner{Name: "shop/young"}, nil)
	w.cfg.Families[0].Settings = func(name cluster.Name) policy.Settings {
		s := settings
		s.Weigh, s.MaxObjects = func(s lb.Size) int { return s.Backends }, 100
		if name.Name == "young" {
			s.Older = 99
		}
		return s
	}
	for name, want := range map[string]State{"shop/old": OK, "shop/young": Refused} {
		d, err := w.Service(name)
		if err != nil {
			t.Fatal(err)
		}
		if d.State != want {
			t.Errorf("%s is %s, want %s", name, d.State, want)
		}
		why := strings.Join(d.Reasons, "\n")
		if reported := strings.Contains(why,
			"spec.clusterIPs 10.96.0.2 exceeds the limit of 100 objects per namespace"); reported != (want == Refused) {
			t.Errorf("%s: %s", name, why)
		}
	}
}

// While a query reads the kernel, it holds neither the engine's lock nor the store's: the writer
// never waits for it (NT-09).
func TestQueriesReadWithoutLocks(t *testing.T) {
	w := newWorld()
	w.add("shop", "web", "10.96.0.1", 3, 3)
	var table sync.RWMutex
	read := map[string]bool{}
	reads := func(what string) {
		read[what] = true
		if !table.TryLock() {
			t.Errorf("%s is read under the engine's lock", what)
			return
		}
		table.Unlock()
		folded := make(chan struct{})
		go func() { w.store.Fold(cluster.CIDRsListed{}); close(folded) }()
		select {
		case <-folded:
		case <-time.After(10 * time.Second):
			t.Errorf("%s is read under the store's lock", what)
		}
	}
	f := &w.cfg.Families[0]
	query := f.Query
	f.Query = func(do func(*lb.Table)) {
		table.RLock()
		defer table.RUnlock()
		query(do)
	}
	f.Stats = func() engine.Stats { reads("the engine's state"); return engine.Stats{} }
	f.Tracer = readingTracer{func() { reads("the kernel's state of the mode") }}
	w.cfg.Local = func() ([]netip.Addr, error) { reads("addresses"); return nil, nil }
	w.cfg.Conntrack = func() (uint64, uint64, bool) { reads("the size of conntrack"); return 1, 2, true }
	w.cfg.Follow = func(context.Context, nodetrace.Question) (trace.Node, error) {
		reads("the rest of the node")
		return trace.Node{Verdict: trace.Delivered}, nil
	}
	if a, err := w.Trace(t.Context(), TraceQuery{From: "10.1.0.7", To: "shop/web"}); err != nil || a.Rest == nil {
		t.Errorf("trace: %+v, %v", a, err)
	}
	if _, err := w.Service("shop/web"); err != nil {
		t.Error(err)
	}
	if s := w.Status(); s.Conntrack == nil {
		t.Errorf("status: %+v", s)
	}
	if len(read) != 5 {
		t.Errorf("only %v were read", read)
	}
}

// readingTracer is a kernel that agrees with the table.
type readingTracer struct{ reads func() }

func (r readingTracer) TracePacket(context.Context, trace.Packet, mode.Walk) (trace.Kernel, error) {
	r.reads()
	return trace.Kernel{Verdict: trace.Balance}, nil
}

func (r readingTracer) Differences(context.Context, *lb.Table, func(trace.Difference) bool) error {
	r.reads()
	return nil
}
