package inspect

import (
	"slices"
	"strings"

	"kube-proxy/trace"
)

// Beginnings of sentences of [trace.Ask] about the source that backends see.
const (
	masqueraded = "The packet is masqueraded"
	hairpins    = "The client is one of the backends"
	proxied     = "The connection ends at the proxy"
	unchanged   = "The backend sees the client's own address."
)

// instead replaces a sentence by its beginning.
func (a *TraceAnswer) instead(of, sentence string) {
	for j, why := range a.Why {
		if strings.HasPrefix(why, of) {
			a.Why[j] = sentence
		}
	}
}

// atSocket corrects what an answer says of the source that backends see, if programs connect the
// client's socket: nothing is translated then.
func (a *TraceAnswer) atSocket() {
	if k := a.Kernel; k == nil || !k.Connected || a.Verdict != trace.Balance {
		return
	}
	a.Masquerade = false
	for j := range a.Backends {
		a.Backends[j].Hairpin = false
	}
	a.instead(masqueraded, "The backend sees the client's own address: a program connects the socket to it, and no "+
		"packet is translated.")
	a.instead(hairpins, "The client is one of the backends: its connection to itself does not leave it.")
}

// atBackends corrects what an answer says of the source that backends see, if rules of other
// programs on this node decide that.
func (a *TraceAnswer) atBackends() {
	if a.Rest == nil || a.Rest.Sees == "" || a.Verdict != trace.Balance {
		return
	}
	a.Masquerade = a.Rest.Sees == trace.SeesAnother
	if a.Kernel != nil {
		a.Kernel.Masquerade = a.Masquerade
	}
	for _, said := range []string{masqueraded, proxied} {
		a.instead(said, "The backend sees the client's own address, because of rules of other programs on this node.")
	}
	a.instead(unchanged, "The backend does not see the client's address: a rule of another program gives the packet "+
		"another source.")
}

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
	switch here {
	case 0:
	case len(a.Backends):
		a.Masquerade = false
		if a.Kernel != nil {
			a.Kernel.Masquerade = false
		}
		a.instead(masqueraded, "The backend sees the client's own address: it is at an address of this node, so "+
			"nothing leaves the node that could be masqueraded.")
	default:
		a.instead(masqueraded, "The packet is masqueraded, except to backends at addresses of this node: they see the "+
			"client's own address, others an address of this node.")
	}
}
