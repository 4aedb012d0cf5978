package scenario

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// A Replay steps through the states of a scenario in one family, as the program would: events are
// folded into a store, dirty Services are resolved, the table is replaced Service by Service.
type Replay struct {
	s        *Scenario
	settings policy.Settings
	store    *cluster.Store
	services map[cluster.Name]*cluster.Service
	table    lb.Table
	at       int
	stretch  int32 // factor of client affinities
}

// A Step is the transition of a plane from the previous state to one state.
type Step struct {
	State *State
	// Events are the events of the user's changes, in order.
	Events []cluster.Event
	// Problems are the problems reported to users, in order.
	Problems []string
	// Refused are the addresses that are not served of the Services that the changes concern, a
	// line each.
	Refused []string
	// Changes lead from the frontends of the previous state to those of this one; each key occurs
	// once.
	Changes []lb.Change
	// NewNode: Table.Node differs from the state before; always so for the first state.
	NewNode bool
	// Table is the whole table of this state. It belongs to the Replay: the next step changes it.
	Table *lb.Table
}

// Replay begins a walk.
func (s *Scenario) Replay(f lb.Family) *Replay {
	store := cluster.NewStore(s.Settings.NodeName)
	store.IndexEndpoints(true) // for events of failover
	store.Fold(s.Settings.Held())
	return &Replay{
		s:        s,
		settings: s.Settings.For(f),
		store:    store,
		services: map[cluster.Name]*cluster.Service{},
		stretch:  1,
	}
}

// Stretch makes every client affinity n times as long as in the scenario (n ≥ 1), for a machine
// that is too slow for its packets. It must be called before the first Next; the sender of the
// packets has to wait n times as long, too.
func (r *Replay) Stretch(n int) { r.stretch = int32(n) }

// stretched returns the events with the affinities of this replay.
func (r *Replay) stretched(events []cluster.Event) []cluster.Event {
	if r.stretch == 1 {
		return events
	}
	out := slices.Clone(events)
	for i, ev := range out {
		if set, ok := ev.(cluster.ServiceSet); ok {
			svc := *set.Service
			svc.AffinitySeconds *= r.stretch
			out[i] = cluster.ServiceSet{Service: &svc}
		}
	}
	return out
}

// Next moves to the next state; ok is false after the last, and then Next may not be called again.
func (r *Replay) Next() (step Step, ok bool, err error) {
	if r.at == len(r.s.States) {
		return Step{}, false, nil
	}
	step.State = r.s.States[r.at]
	step.Events, step.Problems, err = step.State.Events()
	if err != nil {
		return Step{}, false, fmt.Errorf("%s: %w", r.s.Name, err)
	}
	step.Events = r.stretched(step.Events)
	var changes []lb.Change
	refused := map[cluster.Name][]policy.Refusal{}
	for _, ev := range step.Events {
		changes = append(changes, r.fold(ev, refused)...)
	}
	step.Changes = Fold(changes)
	for name, refusals := range refused {
		for _, refusal := range refusals {
			step.Refused = append(step.Refused, name.String()+": "+refusal.String())
		}
	}
	slices.Sort(step.Refused)
	node := policy.ResolveNode(r.store.Facts(), r.settings)
	step.NewNode = r.at == 0 || !node.Equal(r.table.Node)
	r.table.Node = node
	step.Table = &r.table
	r.at++
	return step, true, nil
}

// fold folds one event and returns the changes of the table. It records the refusals of the
// Services concerned.
func (r *Replay) fold(ev cluster.Event, refused map[cluster.Name][]policy.Refusal) []lb.Change {
	var out []lb.Change
	for _, ref := range r.store.Fold(ev).Services {
		if r.settings.Family == lb.IPv4 && !ref.V4 || r.settings.Family == lb.IPv6 && !ref.V6 {
			continue
		}
		view := r.store.View(ref.Name)
		refused[ref.Name] = policy.Refused(view, r.settings)
		changes, _ := r.table.Replace(r.owner(ref.Name), policy.Resolve(view, r.settings))
		out = append(out, changes...)
	}
	return out
}

// Fold merges all changes of a key into one, as the engine does with events during a write: from
// the first old frontend to the last new one.
func Fold(changes []lb.Change) []lb.Change {
	var out []lb.Change
	at := map[lb.Key]int{}
	for _, c := range changes {
		i, seen := at[c.Key]
		if !seen {
			at[c.Key] = len(out)
			out = append(out, c)
			continue
		}
		out[i].New = c.New
	}
	return slices.DeleteFunc(out, func(c lb.Change) bool { return c.Old == c.New })
}

// owner returns the owner of a Service's frontends; a deleted Service keeps its age.
func (r *Replay) owner(n cluster.Name) lb.Owner {
	if svc := r.store.View(n).Service; svc != nil {
		r.services[n] = svc
	}
	o := lb.Owner{Name: n.String()}
	if svc := r.services[n]; svc != nil {
		o.Created = svc.Created
	}
	return o
}

// Fresh returns the table of the current state made from nothing: the one that a proxy that starts
// now must hold.
func (r *Replay) Fresh() *lb.Table {
	t := &lb.Table{Node: r.table.Node}
	for owner, fronts := range r.Services() {
		t.Replace(owner, fronts)
	}
	return t
}

// Services iterates over the current Services and their frontends.
func (r *Replay) Services() iter.Seq2[lb.Owner, []*lb.Frontend] {
	return func(yield func(lb.Owner, []*lb.Frontend) bool) {
		for _, n := range r.store.Names() {
			if !yield(r.owner(n), policy.Resolve(r.store.View(n), r.settings)) {
				return
			}
		}
	}
}

// Address returns the current address of a in the replay's family; ok is false without one. A
// NodePort has none.
func (r *Replay) Address(a Addrs) (addr netip.Addr, ok bool) {
	six := r.settings.Family == lb.IPv6
	if a.Of == "" {
		addr = a.V4
		if six {
			addr = a.V6
		}
		return addr, addr.IsValid()
	}
	svc := r.lastService(a.Of)
	if svc == nil {
		return addr, false
	}
	var from []netip.Addr
	switch a.Kind {
	case ClusterAddr:
		from = svc.ClusterIPs
	case ExternalAddr:
		from = svc.ExternalIPs
	case LoadBalancerAddr:
		from = svc.LoadBalancerIPs
	}
	for _, addr := range from {
		if addr.Is6() == six {
			return addr, true
		}
	}
	return addr, false
}

// lastService returns a Service in its current or, if it is deleted, its last state.
func (r *Replay) lastService(name string) *cluster.Service {
	for n, svc := range r.services {
		if n.String() == name {
			return svc
		}
	}
	return nil
}
