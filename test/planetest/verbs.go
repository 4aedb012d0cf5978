//go:build linux

package planetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/golden"
	"kube-proxy/test/seedtest"
)

// Kernel is the state that planes write, with functions to change it from outside.
type Kernel struct {
	// New makes a plane over the family's kernel state. Slow makes one that postpones all but a few
	// new frontends.
	New, Slow func(lb.Family) (Plane, error)
	// Damage changes a plane's kernel state, as another program with the same rights could.
	Damage func(lb.Family, *rand.Rand) error
	// Wipe removes everything.
	Wipe func(lb.Family) error
	// HealthChecks: the plane writes rules for health-check frontends, which a host firewall would
	// drop (DP-08).
	HealthChecks bool
	// Preserves: the plane carries out the annotation preserve-destination.
	Preserves bool
	// Balances: the plane itself chooses endpoints, so it writes nothing when only these change.
	Balances bool
	// FirstKeeps: an address that is one Service's address and another's endpoint belongs to the
	// first of them (TN-61). When the first is deleted, the other may have it.
	FirstKeeps bool
	// Sockets: the plane connects sockets to endpoints. To an endpoint that is a frontend too it
	// sends packets, which may be masqueraded (TN-01).
	Sockets bool
	// Reported: Drift has a value after Damage. Otherwise only audits find the damage.
	Reported bool
	// Bytes estimates the kernel memory of the family's objects: their number times the measured
	// size of one. [Memory] calls it; nil elsewhere.
	Bytes func(lb.Family) (int, error)
	// Faults are the failures during a [Walk].
	Faults Faults
}

// Verbs proves each verb of engine.Plane, in both families: its result and its effect on packets,
// which [Dump] shows. Every state must be that of a fresh plane with the same table, however it was
// reached.
//
// fresh gives the calling goroutine an empty kernel, such as a new network namespace.
func Verbs(t *testing.T, fresh func(testing.TB) Kernel) {
	for _, f := range families {
		for name, prove := range map[string]func(*verbs){
			"before the first reset": (*verbs).notSetUp,
			"reset":                  (*verbs).reset,
			"reset in pieces":        (*verbs).resetInPieces,
			"restart":                (*verbs).restart,
			"apply":                  (*verbs).apply,
			"set node":               (*verbs).setNode,
			"probe":                  (*verbs).probe,
			"audit":                  (*verbs).audit,
			"wiped":                  (*verbs).wiped,
			"cancelled":              (*verbs).cancelled,
		} {
			t.Run(f.String()+"/"+name, func(t *testing.T) {
				v := &verbs{TB: t, fresh: fresh, Kernel: fresh(t), w: World{Family: f}}
				v.plane = v.new(v.New)
				prove(v)
			})
		}
	}
}

// verbs is one proof.
type verbs struct {
	testing.TB
	Kernel
	fresh func(testing.TB) Kernel
	w     World
	plane Plane
}

func (v *verbs) new(by func(lb.Family) (Plane, error)) Plane {
	v.Helper()
	p, err := by(v.w.Family)
	if err != nil {
		v.Fatal(err)
	}
	v.Cleanup(func() {
		if err := shut(p); err != nil {
			v.Error(err)
		}
	})
	return p
}

// table has Services of all kinds.
func (v *verbs) table() *lb.Table {
	t := v.w.Table(4, 2)
	t.Family = v.w.Family
	t.Replace(v.w.Full(10, 500, 5, 2, time.Hour))
	t.Replace(v.w.Full(11, 520, 3, 0, 0))
	return t
}

func (v *verbs) dump(p Plane) string {
	v.Helper()
	text, err := Dump(p)
	if err != nil {
		v.Fatal(err)
	}
	return text
}

// holds expects the state of a fresh plane in an empty kernel.
func (v *verbs) holds(when string, want *lb.Table) {
	v.Helper()
	var fresh string
	done := make(chan struct{})
	go func() { // on a separate thread
		defer close(done)
		p := v.new(v.fresh(v).New)
		if _, err := ResetAll(context.Background(), p, want); err != nil {
			v.Error(err)
			return
		}
		fresh = v.dump(p)
	}()
	<-done
	if got := v.dump(v.plane); got != fresh {
		v.Fatalf("%s: not what a fresh start makes of the table:\n%s", when, golden.Diff(fresh, got))
	}
}

func (v *verbs) resetTo(want *lb.Table) plane.ResetResult {
	v.Helper()
	res, err := ResetAll(v.Context(), v.plane, want)
	if err != nil {
		v.Fatal(err)
	}
	return res
}

// change replaces a Service in the table, and applies it.
func (v *verbs) change(t *lb.Table, o lb.Owner, fronts []*lb.Frontend) (changes []lb.Change, written bool) {
	v.Helper()
	changes, _ = t.Replace(o, fronts)
	res, err := v.plane.Apply(v.Context(), changes)
	if err != nil {
		v.Fatalf("apply %d changes: %v", len(changes), err)
	}
	return changes, res.Written
}

// lost expects an error that requests a Reset.
func (v *verbs) lost(what string, err error) {
	v.Helper()
	if !errors.Is(err, plane.ErrStateLost) {
		v.Errorf("%s: %v, want an error that asks for a Reset", what, err)
	}
}

// others calls all verbs except Reset.
func (v *verbs) others(ctx context.Context, answer func(string, error)) {
	t := v.table()
	o, fronts := v.w.ClusterIP(0, 700, 3)
	changes, _ := t.Replace(o, fronts)
	_, err := v.plane.Apply(ctx, changes)
	answer("apply", err)
	n := v.w.Node()
	n.NodePorts = nil
	answer("set node", v.plane.SetNode(ctx, n))
	answer("probe", v.plane.Probe(ctx))
	_, err = v.plane.Audit(ctx, true)
	answer("audit", err)
}

// Before the first Reset the kernel's state is unknown, and nothing is written.
func (v *verbs) notSetUp() {
	v.others(v.Context(), v.lost)
	v.resetTo(v.table())
	v.holds("the first reset", v.table())
	if v.plane.MaxBatchWeight() < 1 {
		v.Errorf("the pace is %d, so that nothing could be written", v.plane.MaxBatchWeight())
	}
}

// Reset makes the plane hold exactly the table, and returns the removed keys.
func (v *verbs) reset() {
	t := v.table()
	if res := v.resetTo(t); len(res.Dropped) > 0 {
		v.Errorf("the first reset dropped %v", res.Dropped)
	}
	v.holds("cold", t)
	if res := v.resetTo(t); len(res.Later) > 0 || len(res.Dropped) > 0 {
		v.Errorf("again: %d rows left for later, %v dropped", len(res.Later), res.Dropped)
	}
	v.holds("again", t)
	var want []lb.Key
	_, fronts := v.w.Full(11, 520, 3, 0, 0)
	for _, f := range fronts {
		want = append(want, f.Key)
	}
	t.Replace(lb.Owner{Name: "ns/svc-11"}, nil)
	t.Replace(v.w.Full(10, 600, 4, 0, 0))
	t.Replace(v.w.ClusterIP(1, 0, 0))
	t.Replace(v.w.ClusterIP(20, 800, 2))
	v.dropped(v.resetTo(t), want)
	v.holds("another table", t)
	v.resetTo(&lb.Table{})
	v.holds("nothing", &lb.Table{})
}

func (v *verbs) dropped(res plane.ResetResult, want []lb.Key) {
	v.Helper()
	got := slices.SortedFunc(slices.Values(res.Dropped), lb.Key.Compare)
	slices.SortFunc(want, lb.Key.Compare)
	if !slices.Equal(got, want) {
		v.Errorf("dropped %v, want %v", got, want)
	}
}

// A Reset may postpone new frontends, but none that the kernel served; each can be applied.
func (v *verbs) resetInPieces() {
	v.plane = v.new(v.Slow)
	t := v.table()
	v.resetTo(t)
	served := map[lb.Key]bool{}
	for f := range t.All() {
		served[f.Key] = true
	}
	t.Replace(v.w.Full(10, 600, 4, 0, 0))
	for i := range 40 {
		t.Replace(v.w.Full(100+i, 1000+10*i, 3, i%2, 0))
	}
	res, err := v.plane.Reset(v.Context(), t)
	if err != nil {
		v.Fatal(err)
	}
	if len(res.Later) == 0 {
		v.Error("nothing was left for later")
	}
	for _, k := range res.Later {
		if served[k] || t.Get(k) == nil {
			v.Errorf("%s was left for later: served %t, in the table %t", k, served[k], t.Get(k) != nil)
		}
		if res, err := v.plane.Apply(v.Context(), []lb.Change{{Key: k, New: t.Get(k)}}); err != nil || !res.Written {
			v.Errorf("apply %s: res.Written %t, error %v", k, res.Written, err)
		}
	}
	v.holds("in pieces", t)
}

// A new plane finds the rules of the previous one, and reports the keys that were deleted in
// between (DP-51).
func (v *verbs) restart() {
	t := v.table()
	v.resetTo(t)
	v.plane = v.new(v.New)
	_, fronts := v.w.ClusterIP(2, 0, 1)
	t.Replace(lb.Owner{Name: "ns/svc-2"}, nil)
	v.dropped(v.resetTo(t), []lb.Key{fronts[0].Key})
	v.dropped(v.resetTo(t), nil)
	v.holds("after a restart", t)
}

// Apply sets frontends and removes them, any number of times, and reports whether the kernel was
// used.
func (v *verbs) apply() {
	t := v.table()
	v.resetTo(t)
	if res, err := v.plane.Apply(v.Context(), nil); err != nil || res.Written {
		v.Errorf("no changes: written %t, error %v", res.Written, err)
	}
	o, fronts := v.w.Full(20, 900, 5, 1, time.Minute)
	for _, c := range []struct {
		what   string
		fronts []*lb.Frontend
	}{
		{"a new service", fronts},
		{"other endpoints", second(v.w.Full(20, 903, 4, 2, time.Minute))},
		{"without endpoints", second(v.w.Full(20, 0, 0, 0, 0))},
		{"with endpoints again", fronts},
		{"gone", nil},
	} {
		changes, written := v.change(t, o, c.fronts)
		if endpoints := c.what == "other endpoints"; written == (endpoints && v.Balances) {
			v.Errorf("%s: written %t", c.what, written)
		}
		v.holds(c.what, t)
		if _, err := v.plane.Apply(v.Context(), changes); err != nil {
			v.Errorf("%s, again: %v", c.what, err)
		}
		for i := range changes { // Old is a hint
			changes[i].Old = nil
		}
		if _, err := v.plane.Apply(v.Context(), changes); err != nil {
			v.Errorf("%s, again without what was: %v", c.what, err)
		}
		v.holds(c.what+", again", t)
	}
	if res, err := v.plane.Apply(v.Context(), []lb.Change{{Key: fronts[0].Key}}); err != nil || res.Written {
		v.Errorf("what was never there goes: written %t, error %v", res.Written, err)
	}
	for _, c := range []struct {
		what    string
		fronts  []*lb.Frontend
		written bool
	}{
		{"with endpoints once more", fronts, true},
		{"endpoints that shall see the Service's address", preserving(fronts), v.Preserves},
		{"endpoints that see their own", fronts, v.Preserves},
		{"gone again", nil, true},
		{"a health check", healthCheck(1), v.HealthChecks},
		{"a health check of more endpoints", healthCheck(2), false},
		{"a NodePort at its port", v.instead(), true},
		{"a health check at the port of the NodePort", healthCheck(1), true},
		{"no health check", nil, v.HealthChecks},
	} {
		if _, written := v.change(t, o, c.fronts); written != c.written {
			v.Errorf("%s: written %t, want %t", c.what, written, c.written)
		}
		v.holds(c.what, t)
	}
}

func healthCheck(endpoints int) []*lb.Frontend {
	return []*lb.Frontend{{Key: lb.Key{Port: 32100, Proto: lb.TCP}, Service: "ns/svc-20", Kind: lb.HealthCheck,
		LocalEndpoints: endpoints, Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}}}
}

// instead returns a NodePort that has the key of a health check.
func (v *verbs) instead() []*lb.Frontend {
	fronts := healthCheck(0)
	fronts[0].Kind, fronts[0].Routes = lb.NodePort, balanced(v.w.Set(fronts[0].Service, lb.Cluster, 900, 2))
	return fronts
}

// preserving returns the frontends of a Service with the annotation preserve-destination.
func preserving(fronts []*lb.Frontend) (all []*lb.Frontend) {
	for _, f := range fronts {
		g := *f
		g.PreserveDestination = f.Kind == lb.ExternalIP || f.Kind == lb.LoadBalancer
		all = append(all, &g)
	}
	return all
}

func second[A, B any](_ A, b B) B { return b }

// SetNode ends where a Reset with that node does.
func (v *verbs) setNode() {
	t := v.table()
	v.resetTo(t)
	a, b, c := v.w.Node(), v.w.Node(), v.w.Node()
	b.Pods.Prefixes = append(slices.Clone(b.Pods.Prefixes), b.ServiceCIDRs[0])
	c.Pods, c.NodePorts = lb.Detector{InterfacePrefix: "veth"}, nil
	for _, n := range []lb.Node{b, c, {}, a} {
		if err := v.plane.SetNode(v.Context(), n); err != nil {
			v.Fatalf("%+v: %v", n, err)
		}
		t.Node = n
		v.holds("another node", t)
	}
}

// Probe changes nothing, and does not look like a change by others.
func (v *verbs) probe() {
	t := v.table()
	v.resetTo(t)
	for range 3 {
		if err := v.plane.Probe(v.Context()); err != nil {
			v.Fatal(err)
		}
	}
	v.undisturbed()
	v.holds("after a probe", t)
}

// undisturbed expects that the plane reports no changes by others.
func (v *verbs) undisturbed() {
	v.Helper()
	if n, err := v.plane.Audit(v.Context(), true); err != nil || n != 0 {
		v.Errorf("an audit repaired %d objects, error %v, without another writer", n, err)
	}
	select {
	case <-v.plane.Drift():
		v.Error("drift reported without another writer")
	default:
	}
}

// Audit repairs damage by others, in parts or by requesting a Reset, and finds nothing without
// damage.
func (v *verbs) audit() {
	rnd := rand.New(rand.NewPCG(seedtest.Of(v), uint64(v.w.Family)))
	t := v.table()
	v.resetTo(t)
	v.change(t, lb.Owner{Name: "ns/svc-3"}, nil)
	v.undisturbed()
	for range 6 {
		before := v.dump(v.plane)
		if err := v.Damage(v.w.Family, rnd); err != nil {
			v.Fatal(err)
		}
		after, err := Dump(v.plane)
		harmed := err != nil || after != before // emptying an empty set is no damage, and is not reported
		for harmed && v.Reported {              // a notification may arrive while the next is on its way
			select {
			case <-v.plane.Drift():
			case <-time.After(time.Minute):
				v.Fatal("the damage is not reported")
			}
			v.repair(t, false)
			harmed = v.dump(v.plane) != before
		}
		v.repair(t, true)
		v.holds("after the damage", t)
	}
}

// repair calls an audit, and Reset if it requests one.
func (v *verbs) repair(t *lb.Table, full bool) {
	v.Helper()
	if _, err := v.plane.Audit(v.Context(), full); errors.Is(err, plane.ErrStateLost) {
		v.resetTo(t)
	} else if err != nil {
		v.Error(err)
	}
}

// After everything was removed, verbs request a Reset or restore all of it.
func (v *verbs) wiped() {
	t := v.table()
	v.resetTo(t)
	if err := v.Wipe(v.w.Family); err != nil {
		v.Fatal(err)
	}
	v.repair(t, true)
	v.holds("after everything went", t)
}

// A context that has ended stops every verb before it writes; the previous state stays.
func (v *verbs) cancelled() {
	t := v.table()
	v.resetTo(t)
	ctx, cancel := context.WithCancel(v.Context())
	cancel()
	before := v.dump(v.plane)
	if _, err := v.plane.Reset(ctx, &lb.Table{}); err == nil {
		v.Error("reset: no error")
	}
	v.others(ctx, func(verb string, err error) {
		if err == nil {
			v.Errorf("%s: no error", verb)
		}
	})
	if after := v.dump(v.plane); after != before {
		v.Errorf("something was written:\n%s", golden.Diff(before, after))
	}
	v.resetTo(t)
	v.holds("afterwards", t)
}
