//go:build linux

package iptables

import (
	"kube-proxy/internal/xtables"
	"slices"
)

// comparison is of what the kernel shall hold with what it holds: Reset and Audit are made of it.
type comparison struct {
	p    *Plane
	st   *state
	have *snapshot
}

// differs reports whether the kernel holds a chain otherwise than wanted.
func (c comparison) differs(id xtables.ChainID) bool {
	is, known := c.have.Chains[id]
	return !known || !c.p.Holds(id, c.st.kernel[id], is)
}

// portDiffers reports whether that is so for any chain of a service port.
func (c comparison) portDiffers(s *servicePort) bool {
	return slices.ContainsFunc(s.chains, func(name string) bool { return c.differs(xtables.ChainID{Table: xtables.NAT, Name: name}) })
}

// lacksJump reports whether a rule is not where it should be.
func (c comparison) lacksJump(j xtables.Jump) bool {
	return !c.p.HasJump(j, c.have.Snapshot)
}

// stale returns the chains that nothing needs any more. While chains of service ports are kept as they were, it is not known
// which others these lead to.
func (c comparison) stale() (stale []xtables.ChainID) {
	if len(c.st.kept) > 0 {
		return nil
	}
	for id := range c.have.Chains {
		if _, wanted := c.st.kernel[id]; !wanted && (xtables.IsDynamic(id) || id.Name == xtables.MarkOffCluster) {
			stale = append(stale, id)
		}
	}
	return stale
}

// count returns how many things are not as they should be.
func (c comparison) count() int {
	n := len(c.stale())
	for id := range c.st.kernel {
		if c.differs(id) {
			n++
		}
	}
	for j := range c.st.jumps {
		if c.lacksJump(j) {
			n++
		}
	}
	return n
}
