package fake

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Counts counts the calls of a plane and its work.
type Counts struct {
	Applies, Resets, SetNodes, Audits, Probes int
	Changes                                   int // changes in calls of Apply
	Ops                                       int // writes: frontends, and the backend sets of added ones
}

// Plane is a plane in memory, for one family. Make one with [New]. Its methods may be called from
// any goroutine, so that tests can look while an engine works.
type Plane struct {
	family lb.Family
	drift  chan struct{}

	mu             sync.Mutex
	ready          bool // a Reset has succeeded, and the state was not lost since
	applied        map[lb.Key]*lb.Frontend
	kernel         *kernel
	counts         Counts
	most           int // new frontends that a Reset writes; 0: all
	maxBatchWeight int // 0: no bound
}

// kernel is the state that packets meet.
type kernel struct {
	rows map[lb.Key]*lb.Frontend
	node lb.Node
}

func newKernel() *kernel { return &kernel{rows: map[lb.Key]*lb.Frontend{}} }

// New returns an empty plane. Like a real one, it does nothing before the first Reset.
func New(family lb.Family) *Plane {
	return &Plane{
		family:  family,
		drift:   make(chan struct{}, 1),
		applied: map[lb.Key]*lb.Frontend{},
		kernel:  newKernel(),
	}
}

// Counts returns the counters.
func (p *Plane) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Apply checks all changes, and then makes them one by one: it is atomic for malformed changes.
//
// Like a real plane, it reports nothing as written for health-check frontends and for the removal
// of missing frontends.
func (p *Plane) Apply(ctx context.Context, changes []lb.Change) (res plane.ApplyResult, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Applies++
	p.counts.Changes += len(changes)
	if err := p.usable(ctx); err != nil {
		return res, fmt.Errorf("fake: apply %d changes: %w", len(changes), err)
	}
	for _, c := range changes {
		if err := check(p.family, c.Key, c.New); err != nil {
			return res, fmt.Errorf("fake: apply: %w", err)
		}
	}
	for _, c := range changes {
		was := p.kernel.rows[c.Key]
		res.Written = res.Written || (was != nil && !was.Accepts() || c.New != nil && !c.New.Accepts()) &&
			!onlyPreserves(was, c.New)
		p.set(c.Key, c.New)
	}
	return res, nil
}

// check refuses a frontend that violates a rule of package lb, as a kernel would.
func check(family lb.Family, key lb.Key, f *lb.Frontend) error {
	switch {
	case f == nil:
		return nil
	case f.Key != key:
		return fmt.Errorf("row %s is offered for %s", f.Key, key)
	}
	return lb.Check(family, f)
}

func (p *Plane) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !p.ready {
		return fmt.Errorf("no table: %w", plane.ErrStateLost)
	}
	return nil
}

// set makes f the frontend of the key, or removes it.
func (p *Plane) set(key lb.Key, f *lb.Frontend) {
	p.counts.Ops++
	if f == nil {
		delete(p.applied, key)
		delete(p.kernel.rows, key)
		return
	}
	for _, r := range f.Routes {
		if r.To != nil {
			p.counts.Ops++
		}
	}
	p.applied[key], p.kernel.rows[key] = f, f
}

// Slow makes a Reset write at most that many new frontends, and postpone the others. An Apply
// should not weigh more than pace. 0 means no limit.
func (p *Plane) Slow(most, maxBatchWeight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.most, p.maxBatchWeight = most, maxBatchWeight
}

// MaxBatchWeight returns the largest weight of an Apply.
func (p *Plane) MaxBatchWeight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.maxBatchWeight, math.MaxInt)
}

// onlyPreserves reports whether two frontends differ only in a field that the kernel does not have
// (lb.Frontend.PreserveDestination).
func onlyPreserves(was, now *lb.Frontend) bool {
	if was == nil || now == nil || was.PreserveDestination == now.PreserveDestination {
		return false
	}
	other := *was
	other.PreserveDestination = now.PreserveDestination
	return other.Equal(now)
}

// Reset makes the plane hold exactly the table; only differences are written. It postpones
// malformed frontends, and new ones above the limit of [Plane.Slow].
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Resets++
	if err := ctx.Err(); err != nil {
		return plane.ResetResult{}, fmt.Errorf("fake: reset: %w", err)
	}
	var later, bad []lb.Key
	added := 0
	for _, f := range want.Sorted() {
		if check(p.family, f.Key, f) != nil {
			bad = append(bad, f.Key)
		} else if p.kernel.rows[f.Key] == nil {
			added++
			if p.most > 0 && added > p.most {
				later = append(later, f.Key)
			}
		}
	}
	later = append(later, bad...)
	left := make(map[lb.Key]bool, len(later))
	for _, k := range later {
		left[k] = true
	}
	p.applied = make(map[lb.Key]*lb.Frontend, want.Len())
	dropped := p.reset(want, func(k lb.Key) bool { return !left[k] })
	for _, k := range bad { // the kernel may hold another frontend of that key
		p.set(k, nil)
	}
	p.kernel.node, p.ready = want.Node, true
	return plane.ResetResult{Later: later, Dropped: dropped}, nil
}

// resetPartly does the part of a Reset that concerns the chosen keys and leaves the plane as after
// a failed Reset: a mixture. [Faulty] uses it.
func (p *Plane) resetPartly(want *lb.Table, chosen func(lb.Key) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = false
	p.reset(want, func(k lb.Key) bool { return chosen(k) && check(p.family, k, want.Get(k)) == nil })
}

func (p *Plane) reset(want *lb.Table, chosen func(lb.Key) bool) (dropped []lb.Key) {
	for f := range want.All() {
		switch {
		case !chosen(f.Key):
		case p.kernel.rows[f.Key].Equal(f):
			p.applied[f.Key] = f
		default:
			p.set(f.Key, f)
		}
	}
	for k := range p.kernel.rows {
		if chosen(k) && want.Get(k) == nil {
			dropped = append(dropped, k)
		}
	}
	for _, k := range dropped {
		p.set(k, nil)
	}
	return dropped
}

// SetNode takes a change of the node without a Reset.
func (p *Plane) SetNode(ctx context.Context, n lb.Node) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.SetNodes++
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("fake: set node: %w", err)
	}
	p.kernel.node = n
	return nil
}

// Probe changes nothing, and fails when Apply would.
func (p *Plane) Probe(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Probes++
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("fake: probe: %w", err)
	}
	return nil
}

// Drift has a value after another program changed the kernel.
func (p *Plane) Drift() <-chan struct{} { return p.drift }

// Audit restores frontends that the kernel lost and removes those that it should not have.
func (p *Plane) Audit(ctx context.Context, _ bool) (repaired int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Audits++
	if err := p.usable(ctx); err != nil {
		return 0, fmt.Errorf("fake: audit: %w", err)
	}
	for k, f := range p.applied {
		if !p.kernel.rows[k].Equal(f) {
			p.set(k, f)
			repaired++
		}
	}
	for k := range p.kernel.rows {
		if p.applied[k] == nil {
			p.set(k, nil)
			repaired++
		}
	}
	return repaired, nil
}
