package inspect

import (
	"slices"
	"strings"

	"kube-proxy/trace"
)

// atThisNode corrects what an answer says of the source that backends see: the packet of a client
// elsewhere to a backend at an address of this node leaves the node nowhere, so nothing can
// masquerade it.
func (i *Inspector) atThisNode(f Family, p trace.Packet, a *TraceAnswer) {
	local, err := i.local()
	if err != nil || p.Host || f.Trace.Terminates || !a.Masquerade {
		return
	}
	here := 0
	for j := range a.Backends {
		b := &a.Backends[j]
		if b.Here = slices.Contains(local, b.Address.Addr()); b.Here {
			here++
		}
	}
	say := func(sentence string) {
		for j, why := range a.Why {
			if strings.HasPrefix(why, "The packet is masqueraded") {
				a.Why[j] = sentence
			}
		}
	}
	switch here {
	case 0:
	case len(a.Backends):
		a.Masquerade = false
		if a.Kernel != nil {
			a.Kernel.Masquerade = false
		}
		say("The backend sees the client's own address: it is at an address of this node, so nothing leaves the node " +
			"that could be masqueraded.")
	default:
		say("The packet is masqueraded, except to backends at addresses of this node: they see the client's own " +
			"address, others an address of this node.")
	}
}
