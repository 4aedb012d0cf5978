package fake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// ErrInjected is wrapped by all errors that a [Faulty] plane makes up.
var ErrInjected = errors.New("injected failure")

// Faulty makes a plane fail. A failing call has done a random part of its work: none, some, or all
// of it. Make one with [NewFaulty]; its methods may be called from any goroutine.
type Faulty struct {
	*Plane

	mu    sync.Mutex
	rand  *rand.Rand
	p     float64 // probability that a call fails
	next  []error // results of the next calls
	bad   map[lb.Key]bool
	boom  map[lb.Key]bool
	gate  chan struct{} // closed when calls may pass; nil: they may
	enter chan struct{}
	calls int
}

// NewFaulty returns a plane that acts like p until a method makes it fail. The same seed gives the
// same failures.
func NewFaulty(p *Plane, seed uint64) *Faulty {
	return &Faulty{Plane: p, rand: rand.New(rand.NewPCG(seed, seed))}
}

// FailWith makes each call fail with probability p, from 0 to 1.
func (f *Faulty) FailWith(p float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.p = p
}

// FailNext makes the next calls fail with these errors, one each. With a nil error a call passes.
// An error that wraps plane.ErrStateLost makes the plane lose its state.
func (f *Faulty) FailNext(errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = append(f.next, errs...)
}

// Refuse makes each Apply fail that has a change for one of the keys, and each Reset leave them
// out.
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

// Block makes calls wait. entered gets a value for each call that arrives; release, called once,
// lets all pass. The calls wait even if their context ends, as a system call does.
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
func (f *Faulty) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	err = f.verdict()
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
		return f.Plane.Apply(ctx, changes)
	}
	if len(part) > 0 {
		if _, err := f.Plane.Apply(ctx, part); err != nil {
			return res, err
		}
	}
	f.lose(err)
	return res, fmt.Errorf("fake: apply: %w", err)
}

// part returns a random part of the changes, without the keys that are refused.
func (f *Faulty) part(changes []lb.Change) []lb.Change {
	share := f.rand.Float64()*1.5 - 0.25
	return slices.DeleteFunc(slices.Clone(changes), func(c lb.Change) bool {
		return f.bad[c.Key] || f.rand.Float64() >= share
	})
}

// without returns the table without the refused keys, and those of them that it has.
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
	slices.SortFunc(refused, lb.Key.Compare)
	rest := &lb.Table{Node: want.Node}
	for row := range want.All() {
		if !f.bad[row.Key] {
			rest.Replace(lb.Owner{Name: row.Key.String()}, []*lb.Frontend{row})
		}
	}
	return rest, refused
}

func (f *Faulty) lose(err error) {
	if errors.Is(err, plane.ErrStateLost) {
		f.Lose(false)
	}
}

// Reset resets the plane, or a random part of it and fails. Keys that are refused are left for
// later.
func (f *Faulty) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	err := f.verdict()
	if err == nil {
		rest, refused := f.without(want)
		res, err := f.Plane.Reset(ctx, rest)
		if err == nil && len(refused) > 0 {
			res.Later = append(res.Later, refused...)
			res.Dropped = slices.DeleteFunc(res.Dropped, func(k lb.Key) bool { return want.Get(k) != nil })
		}
		return res, err
	}
	f.mu.Lock()
	share := f.rand.Float64()
	coin := rand.New(rand.NewPCG(f.rand.Uint64(), f.rand.Uint64()))
	f.mu.Unlock()
	f.resetPartly(want, func(lb.Key) bool { return coin.Float64() < share })
	f.lose(err)
	return plane.ResetResult{}, fmt.Errorf("fake: reset: %w", err)
}

// fails decides whether a call that writes no frontend fails.
func (f *Faulty) fails(verb string) error {
	err := f.verdict()
	if err == nil {
		return nil
	}
	f.lose(err)
	return fmt.Errorf("fake: %s: %w", verb, err)
}

// SetNode passes the node on, or fails.
func (f *Faulty) SetNode(ctx context.Context, n lb.Node) error {
	if err := f.fails("set node"); err != nil {
		return err
	}
	return f.Plane.SetNode(ctx, n)
}

// Probe is the plane's, or fails. Refused keys do not make it fail: it writes no frontend.
func (f *Faulty) Probe(ctx context.Context) error {
	if err := f.fails("probe"); err != nil {
		return err
	}
	return f.Plane.Probe(ctx)
}

// Audit is the plane's, or fails before it has done anything.
func (f *Faulty) Audit(ctx context.Context, full bool) (repaired int, err error) {
	if err := f.fails("audit"); err != nil {
		return 0, err
	}
	return f.Plane.Audit(ctx, full)
}
