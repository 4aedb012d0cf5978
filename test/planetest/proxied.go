package planetest

import "slices"

// Proxied names one thing that is otherwise where connections end at the plane ([Config.Proxied]).
type Proxied string

// What is otherwise.
const (
	// ProxiedAddress: backends see an address of the node as the source, where other modes keep the client's.
	ProxiedAddress Proxied = "address"
	// ProxiedRestart: the connections of a plane end with it; sessions of UDP go on, and may meet another backend.
	ProxiedRestart Proxied = "restart"
	// ProxiedAffinity: which backend a client had is forgotten when the plane ends.
	ProxiedAffinity Proxied = "affinity"
	// ProxiedReset: a connection that no backend answers is refused after it was accepted: by a reset.
	ProxiedReset Proxied = "reset"
	// ProxiedRetry: a backend that does not answer is hidden: each connection meets one that does.
	ProxiedRetry Proxied = "retry"
)

// proxiedNotes are what docs/conformance.md says of each.
var proxiedNotes = map[Proxied]string{
	ProxiedAddress:  "Differs by intent: connections end at the proxy, so backends see an address of the node, not the client's. That is what was expected, and seen.",
	ProxiedRestart:  "Differs by intent: open connections end with the process of the proxy. That is what was expected, and seen.",
	ProxiedAffinity: "Differs by intent: clients stay with their backend until the proxy starts again, and then with the one that they meet first. That is what was expected, and seen.",
	ProxiedReset:    "Differs by intent: where no backend answers, a connection is accepted before it is reset. That is what was expected, and seen.",
	ProxiedRetry:    "Differs by intent, for the better: a backend that does not answer is hidden from clients. That is what was expected, and seen.",
}

// note adds what was otherwise, each once and in order.
func note[T ~string](to *[]T, how []T) {
	*to = append(*to, how...)
	slices.Sort(*to)
	*to = slices.Compact(*to)
}

// proxied explains the column of a mode in which connections end at the proxy.
func (p *page) proxied() {
	var modes []string
	for _, r := range p.results {
		for _, c := range r.Cases {
			if len(c.Proxied) > 0 && !slices.Contains(modes, r.Mode) {
				modes = append(modes, r.Mode)
			}
		}
	}
	for _, mode := range modes {
		p.line("In mode %s connections end at the proxy. What follows from that differs from the other modes by intent. The same lines", mode)
		p.line("were sent as in the other modes, and had to show the difference; a note says which:")
		p.line("")
		p.line("- A backend sees an address of the node as the source, never the client's, and a client is told apart by its address at the")
		p.line("  proxy alone (SV-18, SV-61 hold all the same).")
		p.line("- A backend that refuses a connection, or does not answer in time, is hidden: the client meets another.")
		p.line("- Where no backend answers, the client's connection is accepted before it is reset; without any endpoint it is refused at once.")
		p.line("- Connections to an endpoint or a Service that is removed go on as in the other modes, unless")
		p.line("  `userspace.terminationGracePeriod` bounds that.")
		p.line("- When the proxy stops, its connections end, after those that it waits for; a new process does not know which backend a")
		p.line("  client had.")
		p.line("")
	}
}
