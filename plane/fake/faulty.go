package fake

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// ErrInjected is wrapped by all errors that a [Faulty] plane makes up.
var ErrInjected = errors.New("injected failure")

// Target is what a Faulty plane stands before.
type Target interface {
	Apply(ctx context.Context, changes []lb.Change) error
	Reset(ctx context.Context, want *lb.Table) error
}

// Faulty makes a plane fail. A call that fails has done a random part of its work: none, some, or all of it.
// Make one with [NewFaulty]; its methods may be called from any goroutine.
type Faulty struct {
	target Target

	mu    sync.Mutex
	rand  *rand.Rand
	p     float64 // probability that a call fails
	next  []error // what the next calls answer
	bad   map[lb.Key]bool
	boom  map[lb.Key]bool
	gate  chan struct{} // closed when calls may pass; nil: they may
	enter chan struct{}
	calls int
}

// NewFaulty returns a plane that does as target does until it is told to fail. The same seed gives the same
// failures.
func NewFaulty(target Target, seed uint64) *Faulty {
	return &Faulty{target: target, rand: rand.New(rand.NewPCG(seed, seed))}
}

// FailWith makes each call fail with probability p, from 0 to 1.
func (f *Faulty) FailWith(p float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.p = p
}

// FailNext makes the next calls fail with these errors, one each. A nil error lets a call pass. An error
// that wraps plane.ErrStateLost makes the target lose its state, if it can.
func (f *Faulty) FailNext(errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = append(f.next, errs...)
}

// Refuse makes each Apply fail that has a change for one of the keys, and each Reset leave them out.
func (f *Faulty) Refuse(keys ...lb.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad = with(f.bad, keys)
}

// PanicAt makes each Apply panic that has a change for one of the keys.
func (f *Faulty) PanicAt(keys ...lb.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boom = with(f.boom, keys)
}

func with(set map[lb.Key]bool, keys []lb.Key) map[lb.Key]bool {
	if set == nil {
		set = map[lb.Key]bool{}
	}
	for _, k := range keys {
		set[k] = true
	}
	return set
}

// Heal ends all faults but Block.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.p, f.next, f.bad, f.boom = 0, nil, nil, nil
}

// Block makes calls wait. entered gets a value for each call that arrives; release, called once, lets all
// pass. The calls wait whatever becomes of their context, as a system call does.
func (f *Faulty) Block() (entered <-chan struct{}, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate, enter := make(chan struct{}), make(chan struct{}, 100)
	f.gate, f.enter = gate, enter
	return enter, func() {
		f.mu.Lock()
		f.gate, f.enter = nil, nil
		f.mu.Unlock()
		close(gate)
	}
}

// Calls returns the number of calls that have arrived.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// verdict waits at the gate and decides whether this call fails.
func (f *Faulty) verdict() error {
	f.mu.Lock()
	f.calls++
	gate, enter := f.gate, f.enter
	f.mu.Unlock()
	if gate != nil {
		select {
		case enter <- struct{}{}:
		default:
		}
		<-gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.next) > 0 {
		err := f.next[0]
		f.next = f.next[1:]
		return err
	}
	if f.p > 0 && f.rand.Float64() < f.p {
		return ErrInjected
	}
	return nil
}

// Apply applies the changes, or a random part of them and fails.
func (f *Faulty) Apply(ctx context.Context, changes []lb.Change) error {
	err := f.verdict()
	f.mu.Lock()
	for _, c := range changes {
		if f.boom[c.Key] {
			f.mu.Unlock()
			panic("fake: panic at " + c.Key.String())
		}
		if err == nil && f.bad[c.Key] {
			err = fmt.Errorf("%s: %w", c.Key, ErrInjected)
		}
	}
	var part []lb.Change
	if err != nil {
		part = f.part(changes)
	}
	f.mu.Unlock()
	if err == nil {
		return f.target.Apply(ctx, changes)
	}
	if len(part) > 0 {
		if err := f.target.Apply(ctx, part); err != nil {
			return err
		}
	}
	f.lose(err)
	return fmt.Errorf("fake: apply: %w", err)
}

// part returns a random part of the changes, without the keys that are refused.
func (f *Faulty) part(changes []lb.Change) []lb.Change {
	share := f.rand.Float64()*1.5 - 0.25
	return slices.DeleteFunc(slices.Clone(changes), func(c lb.Change) bool {
		return f.bad[c.Key] || f.rand.Float64() >= share
	})
}

// without returns the table without the keys that are refused, and those of them that it has.
func (f *Faulty) without(want *lb.Table) (*lb.Table, []lb.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var refused []lb.Key
	for k := range f.bad {
		if want.Get(k) != nil {
			refused = append(refused, k)
		}
	}
	if len(refused) == 0 {
		return want, nil
	}
	rest := &lb.Table{Node: want.Node}
	for row := range want.All() {
		if !f.bad[row.Key] {
			rest.Replace(lb.Owner{Name: row.Key.String()}, []*lb.Frontend{row})
		}
	}
	return rest, refused
}

type rowsRefused struct{ keys []lb.Key }

func (e *rowsRefused) Error() string {
	return fmt.Sprintf("fake: reset without %v: %v", e.keys, ErrInjected)
}
func (e *rowsRefused) RefusedRows() []lb.Key { return e.keys }

func (f *Faulty) lose(err error) {
	if x, ok := f.target.(interface{ Lose(signal bool) }); ok && errors.Is(err, plane.ErrStateLost) {
		x.Lose(false)
	}
}

// Reset resets the target, or a random part of it and fails. Keys that are refused are left out, and named by
// the error as engine.RowsRefused wants it.
func (f *Faulty) Reset(ctx context.Context, want *lb.Table) error {
	return f.reset(want, func(rest *lb.Table) error { return f.target.Reset(ctx, rest) })
}

// ResetSome is the target's, or its Reset, or fails as Reset does.
func (f *Faulty) ResetSome(ctx context.Context, want *lb.Table) (later []lb.Key, err error) {
	x, ok := f.target.(interface {
		ResetSome(context.Context, *lb.Table) ([]lb.Key, error)
	})
	if !ok {
		return nil, f.Reset(ctx, want)
	}
	err = f.reset(want, func(rest *lb.Table) (err error) {
		later, err = x.ResetSome(ctx, rest)
		return err
	})
	return later, err
}

// Pace is the target's, if it has one.
func (f *Faulty) Pace() int {
	if x, ok := f.target.(interface{ Pace() int }); ok {
		return x.Pace()
	}
	return math.MaxInt
}

// Dropped are the target's, if it tells them.
func (f *Faulty) Dropped() []lb.Key {
	if x, ok := f.target.(interface{ Dropped() []lb.Key }); ok {
		return x.Dropped()
	}
	return nil
}

func (f *Faulty) reset(want *lb.Table, do func(rest *lb.Table) error) error {
	err := f.verdict()
	if err == nil {
		rest, refused := f.without(want)
		if err := do(rest); err != nil || len(refused) == 0 {
			return err
		}
		return &rowsRefused{refused}
	}
	if x, ok := f.target.(interface {
		ResetPartly(*lb.Table, func(lb.Key) bool) error
	}); ok {
		f.mu.Lock()
		share := f.rand.Float64()
		coin := rand.New(rand.NewPCG(f.rand.Uint64(), f.rand.Uint64()))
		f.mu.Unlock()
		if err := x.ResetPartly(want, func(lb.Key) bool { return coin.Float64() < share }); err != nil {
			return err
		}
	}
	f.lose(err)
	return fmt.Errorf("fake: reset: %w", err)
}

// SetNode passes the node on, or fails; a target that has no SetNode needs a Reset.
func (f *Faulty) SetNode(ctx context.Context, n lb.Node) error {
	x, ok := f.target.(interface {
		SetNode(context.Context, lb.Node) error
	})
	if !ok {
		return fmt.Errorf("fake: set node: the plane cannot: %w", plane.ErrStateLost)
	}
	if err := f.verdict(); err != nil {
		f.lose(err)
		return fmt.Errorf("fake: set node: %w", err)
	}
	return x.SetNode(ctx, n)
}

// Prove is the target's, or fails. Keys that are refused do not make it fail: it writes no row.
func (f *Faulty) Prove(ctx context.Context) error {
	x, ok := f.target.(interface{ Prove(context.Context) error })
	if !ok {
		return errors.New("fake: prove: the plane cannot")
	}
	if err := f.verdict(); err != nil {
		f.lose(err)
		return fmt.Errorf("fake: prove: %w", err)
	}
	return x.Prove(ctx)
}

// Drift is the target's; it never has a value if the target does not audit.
func (f *Faulty) Drift() <-chan struct{} {
	if x, ok := f.target.(interface{ Drift() <-chan struct{} }); ok {
		return x.Drift()
	}
	return nil
}

// Audit is the target's, or fails before it has done anything.
func (f *Faulty) Audit(ctx context.Context, full bool) (mended int, err error) {
	x, ok := f.target.(interface {
		Audit(context.Context, bool) (int, error)
	})
	if !ok {
		return 0, nil
	}
	if err := f.verdict(); err != nil {
		f.lose(err)
		return 0, fmt.Errorf("fake: audit: %w", err)
	}
	return x.Audit(ctx, full)
}
