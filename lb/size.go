package lb

// Size is the request of a Service in one family, as far as it determines the number of objects
// that a plane writes for it. It is the same on every node: a plane that treats the node's own
// endpoints or addresses specially assumes the worst.
type Size struct {
	// Ports is the number of service ports, and so of frontends at each address.
	Ports int
	// Backends is the number of endpoints, each counted once for each port.
	Backends int
	// Addresses is the number of addresses without source ranges, Ranged of those with Ranges
	// source ranges each.
	Addresses, Ranged, Ranges int
	// NodePorts: each port has one.
	NodePorts bool
	// Local: a traffic policy is Local, so that each port has a second set of backends.
	Local bool
	// FTP: one of the ports is 21, which IPVS treats specially.
	FTP bool
	// Affinity: clients stay with their backend.
	Affinity bool
}

// NodePortAddresses is how many addresses of a node a plane assumes to answer NodePorts, if it
// writes a copy for each.
const NodePortAddresses = 4

// Sets returns how many sets of backends each port has at most.
func (s Size) Sets() int {
	if s.Local {
		return 2
	}
	return 1
}

// Copies returns how many frontends each port has; a NodePort counts as many as addresses.
func (s Size) Copies(addresses int) int {
	n := s.Addresses + s.Ranged
	if s.NodePorts {
		n += addresses
	}
	return n
}
