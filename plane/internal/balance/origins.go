package balance

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
)

// Origins classifies client addresses (CF-33). A socket does not know the interface of a client's
// packets, so only addresses distinguish pods.
type Origins struct {
	own  func(netip.Addr) (bool, error)
	pods atomic.Pointer[[]netip.Prefix]

	mu    sync.Mutex
	known map[netip.Addr]knownOwn
}

type knownOwn struct {
	own   bool
	until time.Time
}

// The number of addresses to remember, and the time: a node's addresses change.
const (
	mostKnown  = 4096
	knownLasts = time.Second
)

// NewOrigins returns Origins that know no pods. own asks the kernel whether an address is this
// node's; many goroutines call it.
func NewOrigins(own func(netip.Addr) (bool, error)) *Origins {
	o := &Origins{own: own, known: map[netip.Addr]knownOwn{}}
	o.pods.Store(&[]netip.Prefix{})
	return o
}

// Detect sets how to recognise pods.
func (o *Origins) Detect(d lb.Detector) { o.pods.Store(&d.Prefixes) }

// Pod reports whether the address is a pod's, as the node's detector says.
func (o *Origins) Pod(a netip.Addr) bool {
	return slices.ContainsFunc(*o.pods.Load(), func(p netip.Prefix) bool { return p.Contains(a) })
}

// Host reports whether the address is this node's, according to the kernel.
func (o *Origins) Host(a netip.Addr) bool {
	now := time.Now()
	o.mu.Lock()
	k, ok := o.known[a]
	o.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.own
	}
	own, err := o.own(a)
	own = own && err == nil
	o.mu.Lock()
	defer o.mu.Unlock()
	for old := range o.known { // any one makes room: who comes again is asked for again
		if len(o.known) < mostKnown {
			break
		}
		delete(o.known, old)
	}
	o.known[a] = knownOwn{own, now.Add(knownLasts)}
	return own
}
