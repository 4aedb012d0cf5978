package balance

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
)

// Way is how this node reaches an address.
type Way struct {
	// Local: the address is one of this node.
	Local bool
	// Interface is where packets to it leave.
	Interface string
}

// Origins tells whose an address is (CF-33). A socket does not know the interface that a client's packets came in through; that by which
// the node would answer stands for it. An address to which there is no way is neither a pod's nor the node's.
type Origins struct {
	way      func(netip.Addr) (Way, error)
	detector atomic.Pointer[lb.Detector]

	mu    sync.Mutex
	known map[netip.Addr]knownWay
}

type knownWay struct {
	Way
	until time.Time
}

// What is remembered of ways: so many, for so long. Addresses and routes of a node change.
const (
	mostWays = 4096
	wayLasts = time.Second
)

// NewOrigins returns Origins that know no pods. way asks the kernel; it is called from many goroutines.
func NewOrigins(way func(netip.Addr) (Way, error)) *Origins {
	o := &Origins{way: way, known: map[netip.Addr]knownWay{}}
	o.detector.Store(&lb.Detector{})
	return o
}

// Detect sets how pods are told from others.
func (o *Origins) Detect(d lb.Detector) {
	o.detector.Store(&d)
}

// Pod reports whether the address is a pod's, as the node's detector says.
func (o *Origins) Pod(a netip.Addr) bool {
	switch d := o.detector.Load(); {
	case len(d.Prefixes) > 0:
		return slices.ContainsFunc(d.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	case d.Interface != "":
		return o.ask(a).Interface == d.Interface
	case d.InterfacePrefix != "":
		return strings.HasPrefix(o.ask(a).Interface, d.InterfacePrefix)
	}
	return false
}

// Host reports whether the address is one of this node.
func (o *Origins) Host(a netip.Addr) bool { return o.ask(a).Local }

func (o *Origins) ask(a netip.Addr) Way {
	now := time.Now()
	o.mu.Lock()
	k, ok := o.known[a]
	o.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.Way
	}
	w, err := o.way(a)
	if err != nil {
		w = Way{}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for old := range o.known { // any one makes room: who comes again is asked for again
		if len(o.known) < mostWays {
			break
		}
		delete(o.known, old)
	}
	o.known[a] = knownWay{w, now.Add(wayLasts)}
	return w
}
