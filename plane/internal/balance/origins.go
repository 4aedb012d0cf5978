package balance

import (
	"net/netip"
	"sync/atomic"

	"kube-proxy/lb"
)

// Origins classifies client addresses (CF-33). A socket does not know the interface of a client's
// packets, so only addresses distinguish pods.
type Origins struct {
	own  func(netip.Addr) (bool, error)
	pods atomic.Pointer[[]netip.Prefix]
}

// NewOrigins returns Origins that know no pods. own asks the kernel whether an address is this
// node's; many goroutines call it.
func NewOrigins(own func(netip.Addr) (bool, error)) *Origins {
	o := &Origins{own: own}
	o.pods.Store(&[]netip.Prefix{})
	return o
}

// Detect sets how to recognise pods.
func (o *Origins) Detect(d lb.Detector) { o.pods.Store(&d.Prefixes) }

// Pod reports whether the address is a pod's, as the node's detector says.
func (o *Origins) Pod(a netip.Addr) bool {
	return lb.Within(*o.pods.Load(), a)
}

// Host reports whether the address is this node's, according to the kernel.
func (o *Origins) Host(a netip.Addr) bool {
	own, err := o.own(a)
	return own && err == nil
}
