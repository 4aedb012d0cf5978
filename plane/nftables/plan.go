//go:build linux

package nftables

import (
	"fmt"

	"kube-proxy/lb"
)

// planner says what rows need. It is pure, but that it remembers what it has chosen.
type planner struct {
	family   lb.Family
	maxSlots int
	seed     uint32
	chosen   map[*lb.BackendSet]*lb.BackendSet // see stickable
}

func (p *Plane) planner(st *state) planner {
	return planner{family: p.ip.Family, maxSlots: p.maxSlots, seed: st.seed}
}

// rowPlan is what the kernel shall hold for a key.
type rowPlan struct {
	key            lb.Key
	front          *lb.Frontend // nil for nothing
	class          class
	cluster, local *lb.BackendSet // nil where no route balances over that scope
	seconds        uint32         // of affinity
}

// rowsOf plans changes, of several of one key the last.
func (p *planner) rowsOf(changes []lb.Change) ([]rowPlan, error) {
	if len(changes) > 1 {
		changes = lastOfEach(changes)
	}
	rows := make([]rowPlan, len(changes))
	for i, ch := range changes {
		var err error
		if rows[i], err = p.row(ch.Key, ch.New); err != nil {
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

// row plans what front makes of its key; nil is nothing. A row that accepts is as good as none: our table lets through what it does
// not translate. [lb.Check] has found what is wrong with a frontend in any plane; here it is looked whether this one can hold it.
func (p *planner) row(k lb.Key, f *lb.Frontend) (rowPlan, error) {
	if f == nil || f.Accepts() {
		return rowPlan{key: k}, nil
	}
	if f.Key != k || !k.IsNodePort() && lb.FamilyOf(k.Addr) != p.family {
		return rowPlan{}, fmt.Errorf("frontend %s of %s is offered for key %s of %s", f.Key, f.Service, k, p.family)
	}
	for _, rt := range f.Routes {
		if rt.To != nil && rt.To.Backends.Len() > p.maxSlots {
			return rowPlan{}, fmt.Errorf("frontend %s of %s: backend set %s has %d backends, more than the %d that nftables mode can hold",
				k, f.Service, rt.To.ID, rt.To.Backends.Len(), p.maxSlots)
		}
	}
	r := rowPlan{key: k, front: f, class: classOf(f), seconds: roundSeconds(seconds(f.Affinity))}
	r.cluster, r.local = f.Set(lb.Cluster), f.Set(lb.Local)
	if r.seconds > 0 {
		r.cluster, r.local = p.stickable(r.cluster), p.stickable(r.local)
	}
	return r, nil
}
