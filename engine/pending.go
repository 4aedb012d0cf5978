package engine

import "kube-proxy/lb"

// pending is what the plane has not accepted yet. What is wanted stands in the table; here stands what was
// accepted last. For a key that is not here the plane holds the table's row.
type pending struct {
	byKey map[lb.Key]*pendingChange
	// queue has the keys to be written next.
	queue queue[lb.Key]
	// waits are the keys that failed, each with its own backoff.
	waits waitlist[lb.Key]
	// doubtful counts the changes in doubt.
	doubtful int
	// left counts the rows that a Reset left for later and that have yet to be tried.
	left int
	// programming says who waits for which changes.
	programming programming
}

// pendingChange is one key that the plane must be told of.
type pendingChange struct {
	old     *lb.Frontend    // what the plane accepted last
	doubt   bool            // it was offered in a write that failed: the plane may hold anything
	begun   bool            // the plane has written a part of it
	left    bool            // a Reset left it for later, and it was neither accepted nor found to fail alone
	alone   bool            // it has failed alone
	search  uint64          // that it belongs to; 0 if none
	logged  string          // the last error that was logged for it
	waiters []*unprogrammed // services that wait for it; as many as claim the key
}

func newPending() pending { return pending{byKey: map[lb.Key]*pendingChange{}} }

// add folds a change of the table in. A key that waited is fresh again: what failed was another row.
func (p *pending) add(c lb.Change) {
	pc := p.byKey[c.Key]
	if pc == nil {
		pc = &pendingChange{old: c.Old}
		p.byKey[c.Key] = pc
	}
	p.waits.forget(c.Key)
	pc.alone, pc.search = false, 0
	p.queue.push(c.Key, lb.NamespaceOf(serviceOf(c)))
}

// leave adds a row that a Reset left for later. known is what the plane held for the key before, if anything.
func (p *pending) leave(k lb.Key, known *lb.Frontend, service string) {
	p.byKey[k] = &pendingChange{old: known, doubt: known != nil, left: true}
	p.left++
	if known != nil {
		p.doubtful++
	}
	p.queue.later(k, lb.NamespaceOf(service))
}

// goOn queues a key again of whose change the plane has written a part.
func (p *pending) goOn(k lb.Key, t *lb.Table) {
	pc := p.byKey[k]
	pc.begun, pc.alone, pc.search = true, false, 0
	p.waits.forget(k)
	p.queue.later(k, lb.NamespaceOf(serviceOf(lb.Change{Key: k, Old: pc.old, New: t.Get(k)})))
}

// take takes a piece of the queue, of about that weight as of tells it.
func (p *pending) take(weight int, of func(*lb.Frontend) int, t *lb.Table) []lb.Key {
	return p.queue.take(weight, func(k lb.Key) int { return p.weigh(of, k, t) })
}

// weigh tells how much work a key is.
func (p *pending) weigh(of func(*lb.Frontend) int, k lb.Key, t *lb.Table) int {
	return max(of(t.Get(k)), of(p.byKey[k].old))
}

// offer returns what must be offered for the keys, and whether some of it was offered before; it forgets keys that want
// what the plane holds for certain. A key in doubt is offered even then.
func (p *pending) offer(keys []lb.Key, t *lb.Table) (changes []lb.Change, again bool) {
	changes = make([]lb.Change, 0, len(keys))
	var compared lb.Comparison
	for _, k := range keys {
		pc, want := p.byKey[k], t.Get(k)
		if !pc.doubt && !pc.begun && compared.Equal(pc.old, want) {
			p.forget(k)
			continue
		}
		again = again || pc.doubt
		changes = append(changes, lb.Change{Key: k, Old: pc.old, New: want})
	}
	return changes, again
}

// failed says that the changes were in a write that failed.
func (p *pending) failed(changes []lb.Change) {
	p.programming.failed++
	for _, c := range changes {
		pc := p.byKey[c.Key]
		if !pc.doubt {
			pc.doubt = true
			p.doubtful++
		}
		for _, u := range pc.waiters {
			u.fails(p.programming.failed)
		}
	}
}

// tried says that a change was accepted, or has failed alone.
func (p *pending) tried(pc *pendingChange) {
	if pc.left {
		pc.left = false
		p.left--
	}
}

// forget drops a key: the plane holds what is wanted.
func (p *pending) forget(k lb.Key) {
	pc := p.byKey[k]
	if pc.doubt {
		p.doubtful--
	}
	p.tried(pc)
	for _, u := range pc.waiters {
		u.open--
		p.programming.settle(u)
	}
	p.waits.forget(k)
	delete(p.byKey, k)
	if len(p.byKey) == 0 {
		p.byKey = map[lb.Key]*pendingChange{}
	}
}
