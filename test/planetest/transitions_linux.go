package planetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/test/scenario"
	"kube-proxy/test/seedtest"
)

// movesPerState is the number of moves of Transitions for each state. Each commit makes others.
const movesPerState = 2

// Transitions moves a plane at random between the states of all scenarios, two moves for each
// state, through Apply alone. A move may come in several batches, and a batch may come twice. Every
// few moves the [Dump] of the plane must equal that of a fresh one with the same table. It runs in
// new namespaces and needs root.
func Transitions(t *testing.T, cfg Config) {
	all := cfg.load(t)
	for _, f := range families {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			seed := seedtest.Of(t)
			states, err := statesOf(all, f)
			if err != nil {
				t.Fatal(err)
			}
			w := &walk{cfg: cfg, family: f, states: states, rnd: rand.New(rand.NewPCG(seed, 0)),
				moves: movesPerState * len(states)}
			if testing.Short() {
				w.moves /= movesPerState
			}
			if err := w.run(); err != nil {
				t.Error(err)
			}
			t.Logf("%d moves between %d states, %d applies, compared with a fresh plane %d times",
				w.moved, len(states), w.applies, w.compared)
		})
	}
}

// asked holds the frontends of one Service in a state.
type asked struct {
	owner  lb.Owner
	fronts []*lb.Frontend
}

// state is a state of a scenario.
type state struct {
	name     string
	node     lb.Node
	services map[string]asked // by owner's name
}

// statesOf returns the states of all scenarios as the frontends of their Services.
func statesOf(all []*scenario.Scenario, f lb.Family) ([]state, error) {
	var out []state
	for _, sc := range all {
		r := sc.Replay(f)
		for {
			step, ok, err := r.Next()
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			p := state{name: strings.TrimSuffix(sc.Name+"/"+step.State.Name, "/"), node: step.Table.Node,
				services: map[string]asked{}}
			for owner, fronts := range r.Services() {
				p.services[owner.Name] = asked{owner, fronts}
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// walk is one random walk of one plane.
type walk struct {
	cfg    Config
	family lb.Family
	states []state
	rnd    *rand.Rand
	moves  int

	plane  Plane
	table  lb.Table
	at     map[string]lb.Owner // the current owners of frontends
	recent []string            // the last moves, for a failure

	moved, applies, compared int
}

func (w *walk) run() error {
	return w.cfg.in(w.family, func(create func() (Plane, error)) error {
		var err error
		w.plane, err = create()
		if err != nil {
			return fmt.Errorf("new plane: %w", err)
		}
		w.table.Node, w.at = w.states[0].node, map[string]lb.Owner{}
		if _, err := ResetAll(context.Background(), w.plane, &w.table); err != nil {
			return errors.Join(fmt.Errorf("reset: %w", err), shut(w.plane))
		}
		return errors.Join(w.walk(), shut(w.plane))
	})
}

// walk makes the moves.
func (w *walk) walk() error {
	for w.moved < w.moves {
		to := w.states[w.rnd.IntN(len(w.states))]
		w.recent = append(w.recent, to.name)
		w.recent = w.recent[max(0, len(w.recent)-12):]
		w.moved++
		if err := w.move(to); err != nil {
			return fmt.Errorf("move %d to %s: %w\nthe last moves: %s", w.moved, to.name, err,
				strings.Join(w.recent, " → "))
		}
		if w.moved%8 != 0 && w.moved != w.moves {
			continue
		}
		w.compared++
		if err := w.compare(); err != nil {
			return fmt.Errorf("after move %d to %s: %w\nthe last moves: %s", w.moved, to.name, err,
				strings.Join(w.recent, " → "))
		}
	}
	return nil
}

// move moves to a state: completely or, one time in four, for some of its Services only.
func (w *walk) move(to state) error {
	ctx := context.Background()
	partly, node := w.rnd.IntN(4) == 0, to.node
	if partly { // API servers of Services that stay
		both := slices.Values(slices.Concat(node.APIServers, w.table.Node.APIServers))
		node.APIServers = slices.Compact(slices.SortedFunc(both, netip.Addr.Compare))
	}
	if !node.Equal(w.table.Node) {
		w.table.Node = node
		if err := w.plane.SetNode(ctx, node); err != nil {
			return fmt.Errorf("set node: %w", err)
		}
	}
	var changes []lb.Change
	for _, name := range slices.Sorted(maps.Keys(w.at)) {
		if _, stays := to.services[name]; !stays && !(partly && w.rnd.IntN(2) == 0) {
			more, _ := w.table.Replace(w.at[name], nil)
			changes = append(changes, more...)
			delete(w.at, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(to.services)) {
		if partly && w.rnd.IntN(2) == 0 {
			continue
		}
		more, _ := w.table.Replace(to.services[name].owner, to.services[name].fronts)
		changes = append(changes, more...)
		w.at[name] = to.services[name].owner
	}
	changes = scenario.Fold(changes)
	w.rnd.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	return w.apply(ctx, changes)
}

// apply hands changes over in one batch or in several, some of them twice.
func (w *walk) apply(ctx context.Context, changes []lb.Change) error {
	for len(changes) > 0 {
		n := len(changes)
		if w.rnd.IntN(3) == 0 {
			n = 1 + w.rnd.IntN(n)
		}
		for range 1 + w.rnd.IntN(8)/7 {
			w.applies++
			if _, err := w.plane.Apply(ctx, changes[:n]); err != nil {
				return fmt.Errorf("apply %d changes: %w", n, err)
			}
		}
		changes = changes[n:]
	}
	return nil
}

// compare compares with a fresh plane in a new namespace.
func (w *walk) compare() error {
	got, err := Dump(w.plane)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	var want string
	err = w.cfg.in(w.family, func(create func() (Plane, error)) error {
		fresh, err := create()
		if err != nil {
			return fmt.Errorf("new plane: %w", err)
		}
		_, err = ResetAll(context.Background(), fresh, &w.table)
		if err != nil {
			err = fmt.Errorf("reset: %w", err)
		} else {
			want, err = Dump(fresh)
		}
		return errors.Join(err, shut(fresh))
	})
	if err != nil {
		return fmt.Errorf("fresh plane: %w", err)
	}
	if got != want {
		return fmt.Errorf("it is not what a fresh plane is\n%stable:\n%s", golden.Diff(want, got), w.table.String())
	}
	return nil
}

func shut(p Plane) error {
	if c, ok := p.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
