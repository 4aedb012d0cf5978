package engine

import (
	"kube-proxy/internal/once"
	"kube-proxy/lb"
)

// pending holds the changes that the plane has not accepted yet. The table has the desired
// frontends; pending has the last accepted ones. For a key that is not in pending, the plane holds
// the table's frontend.
type pending struct {
	byKey map[lb.Key]*pendingChange
	// queue has the keys to be written next.
	queue queue[lb.Key]
	// waits holds the failed keys, each with its own backoff.
	waits waitlist[lb.Key]
	// doubtful counts the changes in doubt.
	doubtful int
	// left counts the frontends that a Reset postponed and that were not tried yet.
	left int
	// programming records which Services wait for which changes.
	programming programming
}

// pendingChange is one key that the plane must update.
type pendingChange struct {
	old     *lb.Frontend    // last accepted frontend
	doubt   bool            // it was offered in a failed write: the plane may hold anything
	begun   bool            // the plane has written a part of it
	left    bool            // a Reset postponed it, and it was neither accepted nor found to fail alone
	alone   bool            // it has failed alone
	search  uint64          // the search that it belongs to; 0 if none
	logged  once.Error      // the last error that was logged for it
	waiters []*unprogrammed // Services that wait for it; as many as claim the key
}

func newPending() pending { return pending{byKey: map[lb.Key]*pendingChange{}} }

// add adds a change of the table. A waiting key is fresh again: the failure was that of another
// frontend.
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

// leave adds a frontend that a Reset postponed. known is the plane's former frontend of the key, if
// any.
func (p *pending) leave(k lb.Key, known *lb.Frontend, service string) {
	p.byKey[k] = &pendingChange{old: known, doubt: known != nil, left: true}
	p.left++
	if known != nil {
		p.doubtful++
	}
	p.queue.later(k, lb.NamespaceOf(service))
}

// goOn queues a key again after the plane has written a part of its change.
func (p *pending) goOn(k lb.Key, t *lb.Table) {
	pc := p.byKey[k]
	pc.begun, pc.alone, pc.search = true, false, 0
	p.waits.forget(k)
	p.queue.later(k, lb.NamespaceOf(serviceOf(lb.Change{Key: k, Old: pc.old, New: t.Get(k)})))
}

// take removes a piece from the queue, of about that weight as computed by of.
func (p *pending) take(weight int, of func(*lb.Frontend) int, t *lb.Table) []lb.Key {
	return p.queue.take(weight, func(k lb.Key) int { return p.weigh(of, k, t) })
}

// weigh returns the weight of a key.
func (p *pending) weigh(of func(*lb.Frontend) int, k lb.Key, t *lb.Table) int {
	return max(of(t.Get(k)), of(p.byKey[k].old))
}

// offer returns the changes to offer for the keys, and whether some of them were offered before. It
// forgets keys whose desired frontend the plane holds for certain. It offers a key in doubt even
// then.
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

// failed records that the changes were in a failed write.
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

// tried records that a change was accepted, or has failed alone.
func (p *pending) tried(pc *pendingChange) {
	if pc.left {
		pc.left = false
		p.left--
	}
}

// forget drops a key: the plane holds its desired frontend.
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
