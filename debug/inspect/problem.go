package inspect

import "fmt"

// Kind is the kind of problem of a query, or of the proxy that received it.
type Kind string

// The kinds of problems.
const (
	// Bad: the question makes no sense as it is written.
	Bad Kind = "bad"
	// Unknown: there is no such Service.
	Unknown Kind = "unknown"
	// Ambiguous: the name matches more than one; see Candidates.
	Ambiguous Kind = "ambiguous"
	// Unavailable: it cannot be answered here, or now.
	Unavailable Kind = "unavailable"
)

// Problem is why a question has no answer.
type Problem struct {
	Kind Kind   `json:"kind"`
	Text string `json:"error"`
	// Candidates are the matches of an ambiguous name, or names similar to an unknown one; at most
	// [maxCandidates].
	Candidates []string `json:"candidates,omitempty"`
}

// maxCandidates bounds [Problem.Candidates].
const maxCandidates = 10

func (p *Problem) Error() string { return p.Text }

// Problemf returns a problem with a text.
func Problemf(kind Kind, format string, args ...any) *Problem {
	return &Problem{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// Cut shortens what a client sent, for a text.
func Cut(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
