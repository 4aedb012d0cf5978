package planetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/golden"
	"kube-proxy/test/seedtest"
)

// Faults are the failures of a [Kernel] during a [Walk]. Without any, a Walk still restarts planes
// and calls Damage.
type Faults struct {
	// Begin makes calls to the kernel fail at random, or other programs interfere with them, until
	// End. One verb runs between the two.
	Begin func(*rand.Rand)
	End   func()
	// Flaky: some calls fail at any time.
	Flaky bool
	// Events happen beside the planes. Each returns a description for the log.
	Events []func(*rand.Rand) string
	// Calm undoes the effects of Events, before planes are compared with fresh ones.
	Calm func()
	// Check inspects state that Dump does not show, for a plane that holds the table. It may call
	// Fatal.
	Check func(testing.TB, Plane, *lb.Table)
	// Local reports which endpoints are on this node. Nil: as in [World].
	Local func(netip.Addr) bool
}

// Walks makes n walks with that many steps, each with a new kernel. In every third walk the planes
// are slow and the Services large.
func Walks(t *testing.T, n, steps int, fresh func(testing.TB) Kernel) {
	seed, troubles := seedtest.Of(t), 0
	for i := range n {
		t.Run(fmt.Sprint(i), func(t *testing.T) { troubles += Walk(t, seed+uint64(i), steps, i%3 == 2, fresh) })
	}
	if troubles == 0 && !t.Failed() {
		t.Error("no call failed and no audit found anything: do the faults do harm?")
	}
}

// Walk walks at random with the planes of both families of one kernel: Services and the node
// change, planes restart, are Reset and audited, other programs damage their state, and calls fail
// ([Kernel.Faults]). After an error the walk acts like the engine: it applies the changes again, or
// calls Reset if the plane requests it.
//
// Without a fault no verb may fail and no audit may find anything. From time to time all faults
// end, and soon each plane must hold the state of a fresh one. Walk returns the number of failed
// calls and repairs.
func Walk(t testing.TB, seed uint64, steps int, slow bool, fresh func(testing.TB) Kernel) (troubles int) {
	w := &walker{TB: t, Kernel: fresh(t), fresh: fresh, rnd: rand.New(rand.NewPCG(seed, 1)), create: Kernel.newPlane,
		endpoints: 6}
	w.disturbed = w.Faults.Flaky
	if slow {
		w.create, w.endpoints = Kernel.newSlow, 90
	}
	defer func() {
		if t.Failed() {
			t.Logf("the last steps:\n%s", strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
		}
		for _, s := range w.sides {
			if err := shut(s.plane); err != nil {
				t.Error(err)
			}
		}
	}()
	for _, f := range families {
		world := World{Family: f}
		s := &side{w: world, table: &lb.Table{Family: f, Node: world.Node()}}
		w.sides = append(w.sides, s)
		w.restart(s)
	}
	for range steps {
		w.step()
		if w.rnd.IntN(5) == 0 {
			w.settle()
		}
	}
	w.settle()
	t.Logf("%d steps, %d with faults, settled %d times; %d errors, %d Resets, %d objects repaired",
		steps, w.faulty, w.settled, w.errors, w.sides[0].resets+w.sides[1].resets, w.repaired)
	return w.errors + w.repaired
}

func (k Kernel) newPlane(f lb.Family) (Plane, error) { return k.New(f) }
func (k Kernel) newSlow(f lb.Family) (Plane, error)  { return k.Slow(f) }

// walker is one walk.
type walker struct {
	testing.TB
	Kernel
	fresh     func(testing.TB) Kernel
	rnd       *rand.Rand
	create    func(Kernel, lb.Family) (Plane, error)
	endpoints int // of a Service at most, about
	sides     []*side
	disturbed bool // a fault happened since the walk settled last
	log       []string

	faulty, settled, errors, repaired int
}

// side is the plane of a family with its table.
type side struct {
	w      World
	plane  Plane
	table  *lb.Table
	owed   map[lb.Key]bool // frontends to apply
	lost   bool            // a Reset must be first
	resets int
}

func (w *walker) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// step does one thing, in half of the cases with faults.
func (w *walker) step() {
	s := w.sides[w.rnd.IntN(len(w.sides))]
	what, do := w.act(s)
	w.note("%s %s", s.w.Family, what)
	faulty := do != nil && w.Faults.Begin != nil && w.rnd.IntN(2) == 0
	if faulty {
		w.faulty++
		w.disturbed = true
		w.Faults.Begin(w.rnd)
	}
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	if do != nil && !faulty && w.rnd.IntN(6) == 0 {
		w.note("  with a context that has ended")
		cancel()
	}
	var err error
	switch {
	case do != nil && s.lost: // before all else
		err = s.work(ctx, nil)
	case do != nil:
		err = do(ctx)
	}
	if faulty {
		w.Faults.End()
	}
	if ctx.Err() != nil { // nothing was written, but the plane may request a Reset
		s.lost = s.lost || errors.Is(err, plane.ErrStateLost)
		return
	}
	w.ended(s, err)
}

// ended notes the result of a verb.
func (w *walker) ended(s *side, err error) {
	if err == nil {
		return
	}
	w.errors++
	w.note("  with error %.500v", err)
	if !w.disturbed {
		w.Fatalf("%s: without a fault: %v", s.w.Family, err)
	}
	s.lost = s.lost || errors.Is(err, plane.ErrStateLost)
}

// act chooses an event, and the verb to call for it; nil for none.
func (w *walker) act(s *side) (what string, verb func(context.Context) error) {
	switch n := w.rnd.IntN(40); {
	case n < 18:
		return w.change(s), func(ctx context.Context) error { return s.work(ctx, s.owing()) }
	case n < 24:
		one := s.owing()
		return "goes on", func(ctx context.Context) error { return s.work(ctx, one[:min(1, len(one))]) }
	case n < 28:
		full := w.rnd.IntN(2) == 0
		return fmt.Sprintf("audit, full %t", full), func(ctx context.Context) error { return w.audit(ctx, s, full) }
	case n < 30:
		w.restart(s)
		return "restarts", func(ctx context.Context) error { return s.work(ctx, nil) }
	case n < 31:
		s.lost = true
		return "reset", func(ctx context.Context) error { return s.work(ctx, nil) }
	case n < 33:
		s.table.Node.NodePorts = [][]netip.Prefix{nil, {s.w.Family.Everywhere()}, s.w.Node().NodePorts}[w.rnd.IntN(3)]
		return fmt.Sprintf("node ports on %v", s.table.Node.NodePorts), s.setNode
	case n < 34:
		return "probe", s.plane.Probe
	case n < 36 && w.Damage != nil:
		w.disturbed = true
		return fmt.Sprintf("damage: %v", w.Damage(s.w.Family, w.rnd)), nil // it may find nothing to damage
	case len(w.Faults.Events) > 0:
		w.disturbed = true
		return w.Faults.Events[w.rnd.IntN(len(w.Faults.Events))](w.rnd), nil
	}
	return w.change(s), nil // to be written with the next
}

// restart closes the plane, which leaves its rules in force, and makes another.
func (w *walker) restart(s *side) {
	if s.plane != nil {
		if err := shut(s.plane); err != nil {
			w.Error(err)
		}
	}
	p, err := w.create(w.Kernel, s.w.Family)
	if err != nil {
		w.Fatal(err)
	}
	s.plane, s.lost, s.owed = p, true, map[lb.Key]bool{}
}

// change gives a Service of the table another form.
func (w *walker) change(s *side) string {
	i, first, n := w.rnd.IntN(8), w.rnd.IntN(20), w.rnd.IntN(w.endpoints)
	o, fronts := s.w.ClusterIP(i, first, n)
	what := fmt.Sprintf("%s has %d endpoints from %d on", o.Name, n, first)
	switch w.rnd.IntN(8) {
	case 0:
		fronts, what = nil, o.Name+" goes"
	case 1, 2:
	default:
		local, affinity := w.rnd.IntN(min(n, 3)+1), time.Duration(w.rnd.IntN(2))*time.Hour
		what += fmt.Sprintf(", addresses of all kinds, %d local, affinity %s", local, affinity)
		_, fronts = s.w.Full(i, first, n, local, affinity)
		preserve := w.Preserves && w.rnd.IntN(3) == 0
		for _, f := range fronts {
			f.PreserveDestination = preserve && (f.Kind == lb.ExternalIP || f.Kind == lb.LoadBalancer)
		}
	}
	w.place(fronts)
	changes, _ := s.table.Replace(o, fronts)
	for _, c := range changes {
		s.owed[c.Key] = true
	}
	return what
}

// place sets which endpoints are on this node.
func (w *walker) place(fronts []*lb.Frontend) {
	if w.Faults.Local == nil {
		return
	}
	for _, f := range fronts {
		for _, r := range f.Routes {
			if r.To == nil {
				continue
			}
			all := slices.Collect(r.To.Backends.All())
			for i := range all {
				all[i].Local = w.Faults.Local(all[i].Addr.Addr())
			}
			r.To.Backends = lb.BackendsOf(all...)
		}
	}
}

// audit calls Audit, which must find nothing without a fault.
func (w *walker) audit(ctx context.Context, s *side, full bool) error {
	repaired, err := s.plane.Audit(ctx, full)
	w.repaired += repaired
	if repaired > 0 && !w.disturbed {
		w.Fatalf("%s: an audit repaired %d objects without a fault", s.w.Family, repaired)
	}
	return err
}

// owing are the changes that the plane has not accepted yet.
func (s *side) owing() (changes []lb.Change) {
	for _, k := range slices.SortedFunc(maps.Keys(s.owed), lb.Key.Compare) {
		changes = append(changes, lb.Change{Key: k, New: s.table.Get(k)})
	}
	return changes
}

// work applies changes, or first Resets a plane that has lost its state.
func (s *side) work(ctx context.Context, changes []lb.Change) error {
	if s.lost {
		s.resets++
		res, err := s.plane.Reset(ctx, s.table)
		if err == nil {
			s.lost = false
			s.owe(nil, res.Later)
		}
		return err
	}
	if len(changes) == 0 {
		return nil
	}
	res, err := s.plane.Apply(ctx, changes)
	if err == nil {
		s.owe(changes, res.Later)
	}
	return err
}

// owe removes accepted changes, and records those that the plane postponed.
func (s *side) owe(taken []lb.Change, later []lb.Key) {
	if taken == nil {
		clear(s.owed)
	}
	for _, c := range taken {
		delete(s.owed, c.Key)
	}
	for _, k := range later {
		s.owed[k] = true
	}
}

func (s *side) setNode(ctx context.Context) error {
	err := s.plane.SetNode(ctx, s.table.Node)
	s.lost = s.lost || err != nil // the engine retries until it succeeds; a Reset brings the node too
	return err
}

// settle ends all faults, lets the planes write the owed changes, and compares them with fresh
// ones.
func (w *walker) settle() {
	w.Helper()
	if w.Faults.Calm != nil {
		w.Faults.Calm()
	}
	w.settled++
	w.note("faults end")
	for range 4 { // a repair by one plane may affect the other
		quiet := true
		for _, s := range w.sides {
			quiet = w.rest(s) && quiet
		}
		if quiet {
			break
		}
	}
	w.disturbed = w.Faults.Flaky
	var want []string
	done := make(chan struct{})
	go func() { // on a separate thread, and so in a separate kernel
		defer close(done)
		want = w.freshDumps()
	}()
	<-done
	for i, s := range w.sides {
		if s.lost || len(s.owed) > 0 {
			w.Fatalf("%s: to be Reset: %t, %d changes not taken", s.w.Family, s.lost, len(s.owed))
		}
		if i >= len(want) {
			w.FailNow()
		}
		got, err := steadyDump(s.plane)
		if err != nil || got != want[i] {
			w.Fatalf("%s: not the state of a fresh plane: %v\n%s", s.w.Family, err, golden.Diff(want[i], got))
		}
		if w.Faults.Check != nil {
			w.Faults.Check(w, s.plane, s.table)
		}
		if n, err := s.plane.Audit(w.Context(), true); n != 0 || err != nil {
			w.Fatalf("%s: one more audit repaired %d, %v", s.w.Family, n, err)
		}
	}
}

// rest makes a plane write all changes, and audits it until nothing is left to repair. It reports
// whether nothing was.
func (w *walker) rest(s *side) (quiet bool) {
	w.Helper()
	quiet = !s.lost && len(s.owed) == 0
	for calls, clean, failed := 0, 0, 0; clean < 2; calls++ {
		if calls > 500 || failed > 10 {
			w.Fatalf("%s: no end after %d calls, %d of them failed", s.w.Family, calls, failed)
		}
		if s.lost || len(s.owed) > 0 {
			clean = 0
			err := s.work(w.Context(), s.owing())
			w.ended(s, err)
			if err == nil || s.lost {
				continue
			}
			failed++ // an audit may repair the obstacle
		}
		before := w.repaired
		err := w.audit(w.Context(), s, true)
		clean++
		if w.repaired > before || err != nil {
			clean, quiet = 0, false
		}
		w.ended(s, err)
		s.lost = s.lost || err != nil
	}
	return quiet
}

// freshDumps are the states of planes that start with the tables.
func (w *walker) freshDumps() (all []string) {
	k := w.fresh(w)
	var planes []Plane
	for _, s := range w.sides {
		p, err := w.create(k, s.w.Family)
		if err == nil {
			planes = append(planes, p)
			_, err = ResetAll(context.Background(), p, s.table)
		}
		if err != nil {
			w.Errorf("%s: a fresh plane: %v", s.w.Family, err)
			return nil
		}
	}
	for _, p := range planes {
		text, err := steadyDump(p)
		if err != nil {
			w.Error(err)
		}
		all = append(all, text)
	}
	for _, p := range planes {
		if err := shut(p); err != nil {
			w.Error(err)
		}
	}
	return all
}

// steadyDump dumps a plane until two dumps are equal: a listing misses elements while the kernel
// grows a hash table.
func steadyDump(p Plane) (text string, err error) {
	for last := "none"; err == nil && text != last; {
		last = text
		text, err = Dump(p)
	}
	return text, err
}
