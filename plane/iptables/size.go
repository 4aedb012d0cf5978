package iptables

import "kube-proxy/lb"

// The kernel's objects, in units of 128 bytes: a rule with its comment or a chain, and the list of
// clients of one endpoint.
const (
	ruleObjects   = 4
	recentObjects = 20
)

// A set of more than splitSize backends is split into parts of partSize to 4*partSize, most of them
// near twice partSize.
const (
	partSize  = 128
	splitSize = 8 * partSize
)

// weigh implements the mode's Weigh. Package policy relies on it being linear in the backends.
func weigh(s lb.Size) int {
	const (
		portRules  = 16 // chains of the port, and their rules
		frontRules = 6  // in dispatchers, and for masquerading
		firewall   = 8  // of an address with source ranges: a chain, and rules that drop and reject
		endpoint   = 3  // a chain and its two rules
		partOf     = 50 // more than 64 endpoints for the chain of a part, and for the jump to it
	)
	rules := s.Ports*portRules + s.Ports*s.Copies(1)*frontRules + s.Ports*s.Ranged*firewall + 2*s.Ranged*(s.Ranges+2)
	jumps := s.Sets()
	if s.Affinity {
		jumps *= 2
	}
	rules += jumps * s.Backends / partOf
	objects := (rules + (jumps+endpoint)*s.Backends) * ruleObjects
	if s.Affinity {
		objects += recentObjects * s.Backends
	}
	return objects
}
