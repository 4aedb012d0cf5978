package userspace

import "kube-proxy/lb"

// What this process and the kernel keep for one, in objects of 128 bytes.
const (
	listenerObjects = 32 // its socket, descriptor and what reads it
	leadObjects     = 24 // what leads packets of a frontend there: rules, elements, or the address
	backendObjects  = 2
)

// weigh is the mode's Weigh. Each address has a listener if listeners are at service addresses,
// else each set of backends.
func weigh(s lb.Size) int {
	copies := s.Copies(lb.NodePortAddresses)
	return s.Ports*(copies+s.Sets()-1)*listenerObjects + s.Ports*copies*leadObjects +
		s.Sets()*s.Backends*backendObjects + 8*s.Ranged*(s.Ranges+1)
}
