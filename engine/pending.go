package engine

import "kube-proxy/lb"

// pending is what the plane has not accepted yet. What is wanted stands in the table; here stands what was
// accepted last. For a key that is not here the plane holds the table's row.
type pending struct {
	wishes map[lb.Key]*wish
	// queue has the keys to be written next.
	queue queue
	// waits are the keys that failed, each with its own backoff.
	waits waitlist[lb.Key]
	// doubtful counts the wishes in doubt.
	doubtful int
	// first counts the wishes that a Reset left for later and that have yet to be tried.
	first int
	// debts says which changes wait for which wishes.
	debts debts
}

// wish is one key that the plane must be told of.
type wish struct {
	old   *lb.Frontend // what the plane accepted last
	doubt bool         // it was offered in a write that failed: the plane may hold anything
	first bool         // a Reset left it for later, and it was neither accepted nor found to be a culprit
	alone bool         // it has failed alone: it is the culprit
	group uint64       // the search that it belongs to; 0 if none
	err   string       // the last error that was logged for it
	debts []*debt      // that wait for it; as many as services claim the key
}

func newPending() pending { return pending{wishes: map[lb.Key]*wish{}} }

// add folds a change of the table in. A key that waited is fresh again: what failed was another wish.
func (p *pending) add(c lb.Change) {
	w := p.wishes[c.Key]
	if w == nil {
		w = &wish{old: c.Old}
		p.wishes[c.Key] = w
	}
	p.waits.forget(c.Key)
	w.alone, w.group = false, 0
	p.queue.push(c.Key, serviceOf(c))
}

// take takes a piece of the queue, of about that weight.
func (p *pending) take(weight int, t *lb.Table) []lb.Key {
	var w lb.Weight
	return p.queue.take(weight, func(k lb.Key) int { return p.weigh(&w, k, t) })
}

// weigh tells how much work a key is.
func (p *pending) weigh(w *lb.Weight, k lb.Key, t *lb.Table) int {
	return max(w.Of(t.Get(k)), w.Of(p.wishes[k].old))
}

// tried says that a wish was accepted, or is refused alone.
func (p *pending) tried(w *wish) {
	if w.first {
		w.first = false
		p.first--
	}
}

// changes returns what must be offered for the keys, and forgets keys that want what the plane holds for
// certain. A key in doubt is offered even then.
func (p *pending) changes(keys []lb.Key, t *lb.Table) []lb.Change {
	out := make([]lb.Change, 0, len(keys))
	var compared lb.Comparison
	for _, k := range keys {
		w, want := p.wishes[k], t.Get(k)
		if !w.doubt && compared.Equal(w.old, want) {
			p.forget(k)
			continue
		}
		out = append(out, lb.Change{Key: k, Old: w.old, New: want})
	}
	return out
}

// doubt says that the changes were in a write that failed.
func (p *pending) doubt(changes []lb.Change) {
	for _, c := range changes {
		if w := p.wishes[c.Key]; !w.doubt {
			w.doubt = true
			p.doubtful++
		}
	}
}

// anyDoubt reports whether one of the changes has been offered before.
func (p *pending) anyDoubt(changes []lb.Change) bool {
	for _, c := range changes {
		if p.wishes[c.Key].doubt {
			return true
		}
	}
	return false
}

// forget drops a key: the plane holds what is wanted.
func (p *pending) forget(k lb.Key) {
	w := p.wishes[k]
	if w.doubt {
		p.doubtful--
	}
	p.tried(w)
	for _, d := range w.debts {
		d.open--
		p.debts.settle(d)
	}
	p.waits.forget(k)
	delete(p.wishes, k)
	if len(p.wishes) == 0 {
		p.wishes = map[lb.Key]*wish{}
	}
}
