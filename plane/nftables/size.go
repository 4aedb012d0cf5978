package nftables

import "kube-proxy/lb"

// weigh implements the mode's Weigh: an object is an element of a map or set, of up to 128 bytes.
func weigh(s lb.Size) int {
	front, backend := 4, 1 // class, set, cluster IP, list of source ranges
	if s.Local {
		front++
	}
	if s.Affinity {
		backend = 2
	}
	const cut = 8 // elements of a source range, see package ranges
	return front*s.Ports*s.Copies(1) + s.Sets()*(s.Ports+backend*s.Backends) + cut*s.Ranged*(s.Ranges+1)
}

// weighLocalhost is weigh with localhost NodePorts: a listener is its socket, descriptor and
// reader.
func weighLocalhost(s lb.Size) int {
	const listener, backend = 32, 2
	n := weigh(s)
	if s.NodePorts {
		n += listener*s.Ports + backend*s.Backends
	}
	return n
}
