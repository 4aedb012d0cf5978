//go:build linux

package nftables

import (
	"fmt"

	"kube-proxy/lb"
)

// planner computes what frontends need. It has no side effects, but caches its choices.
type planner struct {
	family   lb.Family
	maxSlots int
	seed     uint32
	chosen   map[*lb.BackendSet]*lb.BackendSet // see stickable
}

func (p *builder) planner(st *state) planner {
	return planner{family: p.ip.Family, maxSlots: p.maxSlots, seed: st.seed}
}

// rowPlan is the content that the kernel must have for a key.
type rowPlan struct {
	key            lb.Key
	front          *lb.Frontend // nil to remove the key
	class          class
	cluster, local *lb.BackendSet // nil if no route balances over that scope
	seconds        uint32         // affinity timeout
}

// rowsOf plans changes. If several have one key, the last counts.
func (p *planner) rowsOf(changes []lb.Change) ([]rowPlan, error) {
	if len(changes) > 1 {
		changes = lastOfEach(changes)
	}
	rows := make([]rowPlan, len(changes))
	for i, ch := range changes {
		var err error
		rows[i], err = p.row(ch.Key, ch.New)
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func lastOfEach(changes []lb.Change) []lb.Change {
	last := make(map[lb.Key]int, len(changes))
	for i, ch := range changes {
		last[ch.Key] = i
	}
	if len(last) == len(changes) {
		return changes
	}
	out := make([]lb.Change, 0, len(last))
	for i, ch := range changes {
		if last[ch.Key] == i {
			out = append(out, ch)
		}
	}
	return out
}

// row plans the elements of front for its key; nil means none. A frontend that accepts needs none
// either: our table accepts packets that it does not translate. [lb.Check] has already rejected
// frontends that no plane can hold; row checks whether this plane can hold this one.
func (p *planner) row(k lb.Key, f *lb.Frontend) (rowPlan, error) {
	if f == nil || f.Accepts() {
		return rowPlan{key: k}, nil
	}
	if f.Key != k || !k.IsNodePort() && lb.FamilyOf(k.Addr) != p.family {
		return rowPlan{}, fmt.Errorf("frontend %s of %s is offered for key %s of %s", f.Key, f.Service, k, p.family)
	}
	for _, rt := range f.Routes {
		if rt.To != nil && rt.To.Backends.Len() > p.maxSlots {
			return rowPlan{}, fmt.Errorf("frontend %s of %s: backend set %s has %d backends, more than the %d that "+
				"nftables mode can hold", k, f.Service, rt.To.ID, rt.To.Backends.Len(), p.maxSlots)
		}
	}
	r := rowPlan{key: k, front: f, class: classOf(f), seconds: roundSeconds(seconds(f.Affinity))}
	r.cluster, r.local = f.Set(lb.Cluster), f.Set(lb.Local)
	if r.seconds > 0 {
		r.cluster, r.local = p.stickable(r.cluster), p.stickable(r.local)
	}
	return r, nil
}
