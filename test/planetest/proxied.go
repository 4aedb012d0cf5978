package planetest

import "slices"

// Proxied names one difference of planes at which connections end ([Config.Proxied]).
type Proxied string

// The differences.
const (
	// ProxiedAddress: backends see an address of the node as the source, where other modes keep the
	// client's.
	ProxiedAddress Proxied = "address"
	// ProxiedRestart: the connections of a plane end with it; sessions of UDP continue, and may
	// reach another backend.
	ProxiedRestart Proxied = "restart"
	// ProxiedAffinity: affinities are lost when the plane ends.
	ProxiedAffinity Proxied = "affinity"
	// ProxiedReset: a connection that no backend answers is refused after it was accepted: by a
	// reset.
	ProxiedReset Proxied = "reset"
	// ProxiedRetry: a backend that does not answer is hidden: each connection meets one that does.
	ProxiedRetry Proxied = "retry"
)

// proxiedNotes are the explanations in docs/conformance.md.
var proxiedNotes = map[Proxied]string{
	ProxiedRestart:  "Open connections end with the proxy's process.",
	ProxiedAffinity: "Session affinity ends with the proxy's process.",
	ProxiedReset:    "If no backend answers, a connection is accepted and then reset.",
	ProxiedRetry:    "A backend that does not answer is hidden from clients.",
}

// note adds differences, each once and in order.
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
		p.line("In mode %s connections end at the proxy: backends see an address of the node, not the client's.", mode)
		p.line("")
	}
}
