package userspace

import "kube-proxy/lb"

// Memory of this process and the kernel for one of each, in objects of 128 bytes.
const (
	listenerObjects = 32 // its socket, descriptor and reader
	leadObjects     = 24 // the redirect of a frontend: rules, elements, or the address
	backendObjects  = 2
)

// weigh is the mode's Weigh. Each address has a listener if listeners are at service addresses,
// else each set of backends.
func weigh(s lb.Size) int {
	copies := s.Copies(lb.NodePortAddresses)
	return s.Ports*(copies+s.Sets()-1)*listenerObjects + s.Ports*copies*leadObjects +
		s.Sets()*s.Backends*backendObjects + 8*s.Ranged*(s.Ranges+1)
}
