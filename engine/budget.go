package engine

import (
	"cmp"
	"container/heap"
	"sync"

	"kube-proxy/cluster"
	"kube-proxy/internal/ordered"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Budget divides the objects that the Services of one namespace may have in one family
// ([policy.Settings.MaxObjects]). Services are served in the order of their age, then of their
// name. Each gets all objects that it requests, until a request exceeds the rest: that Service gets
// the rest, and younger ones get nothing. So the result depends on the objects alone, not on the
// order of their arrival, and a new Service takes nothing from an older one. Make one with
// [NewBudget]. It may be used from any goroutine.
type Budget struct {
	weigh    func(lb.Size) int
	settings func() policy.Settings

	mu       sync.Mutex
	accounts map[string]*account // by namespace
}

// NewBudget returns a budget without Services. weigh is the weight function of the mode; settings
// returns the current settings.
func NewBudget(weigh func(lb.Size) int, settings func() policy.Settings) *Budget {
	return &Budget{weigh: weigh, settings: settings, accounts: map[string]*account{}}
}

// now returns the settings that all Services have.
func (b *Budget) now() policy.Settings {
	s := b.settings()
	s.Weigh = b.weigh
	return s
}

// Settings returns the settings for the named Service, with the limit that its namespace leaves to
// it.
func (b *Budget) Settings(name cluster.Name) policy.Settings {
	s := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[name.Namespace]
	if a == nil {
		return s
	}
	switch h := a.holders[name.Name]; {
	case h == nil || h.in:
	case h == a.out.First():
		s.Older = min(a.used, s.MaxObjects)
	default:
		s.Older = s.MaxObjects
	}
	return s
}

// Weigh records the request of the Service of v. It returns the other Services of the namespace
// whose share changed: none while all of them fit, and else about as many as fit into the
// difference.
func (b *Budget) Weigh(v cluster.View) (others []cluster.Name) {
	if b == nil {
		return nil
	}
	s := b.now()
	now := holder{name: v.Name.Name, objects: policy.Objects(v, s)}
	if v.Service != nil {
		now.created = v.Service.Created
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[v.Name.Namespace]
	if a == nil {
		if now.objects == 0 {
			return nil
		}
		a = newAccount()
		b.accounts[v.Name.Namespace] = a
	}
	for _, name := range a.set(now, s.MaxObjects) {
		others = append(others, cluster.Name{Namespace: v.Name.Namespace, Name: name})
	}
	if len(a.holders) == 0 {
		delete(b.accounts, v.Name.Namespace)
	}
	return others
}

// account holds the Services of one namespace that request objects.
type account struct {
	holders map[string]*holder // by name
	// in holds the Services that get all they request, youngest first; out holds the others, oldest
	// first. All in are older than all out.
	in, out ordered.Heap[*holder]
	used    int // by those in
}

// holder is a Service.
type holder struct {
	name    string // in the namespace
	created int64
	objects int
	in      bool
	at      int // its place in its heap
}

// Place implements [ordered.Element].
func (h *holder) Place() *int { return &h.at }

func newAccount() *account {
	older := func(h, o *holder) bool { return h.compare(o) < 0 }
	return &account{holders: map[string]*holder{}, out: ordered.Heap[*holder]{Before: older},
		in: ordered.Heap[*holder]{Before: func(h, o *holder) bool { return older(o, h) }}}
}

// set records a new request of a Service, and returns the other Services whose share of the limit
// changed.
func (a *account) set(now holder, limit int) (moved []string) {
	was := a.holders[now.name]
	if was != nil && was.objects == now.objects && was.created == now.created && a.used <= limit && !a.fits(limit) {
		return nil
	}
	next, used := a.out.First(), a.used
	if was != nil {
		a.remove(was)
		delete(a.holders, now.name)
	}
	if now.objects > 0 {
		a.holders[now.name] = &now
		now.in = a.out.Len() == 0 || now.compare(a.out.First()) < 0
		a.add(&now)
	}
	moved = a.settle(limit)
	if after := a.out.First(); after != next || a.used != used {
		for _, h := range []*holder{next, after} {
			if h != nil && h.name != now.name {
				moved = append(moved, h.name)
			}
		}
	}
	return moved
}

// settle moves Services in and out until the oldest are in, as many as the limit allows.
func (a *account) settle(limit int) (moved []string) {
	move := func(h *holder) {
		a.remove(h)
		h.in = !h.in
		a.add(h)
		moved = append(moved, h.name)
	}
	for a.used > limit {
		move(a.in.First())
	}
	for a.fits(limit) {
		move(a.out.First())
	}
	return moved
}

// fits reports whether the oldest Service in out fits.
func (a *account) fits(limit int) bool {
	return a.out.Len() > 0 && a.used+a.out.First().objects <= limit
}

func (a *account) add(h *holder) {
	if h.in {
		a.used += h.objects
		heap.Push(&a.in, h)
	} else {
		heap.Push(&a.out, h)
	}
}

func (a *account) remove(h *holder) {
	if h.in {
		a.used -= h.objects
		heap.Remove(&a.in, h.at)
	} else {
		heap.Remove(&a.out, h.at)
	}
}

// compare orders Services by the order in which they are served.
func (h *holder) compare(o *holder) int {
	return cmp.Or(cmp.Compare(h.created, o.created), cmp.Compare(h.name, o.name))
}
