package trace

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// Harmful reports whether something other than kube-proxy stops connections, or keeps one with a
// former backend.
func (n *Node) Harmful() bool { return n != nil && (n.By != "" && !n.Own || len(n.Pinned) > 0) }

// Lead returns the verdict and what it is about if something stops connections, or may; else "".
func (n *Node) Lead() string {
	if n == nil {
		return ""
	}
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(lb.Printable(fmt.Sprintf(format, args...)) + "\n") }
	for _, p := range n.Pinned {
		line("PINNED by conntrack: %s %s → %s stays with %s, which is no endpoint any more", p.Proto, p.From, p.To,
			p.Backend)
		line("  do: %s", p.Do)
	}
	switch {
	case n.By == "" && n.Verdict == Undecided:
		line("NOT DECIDED: nothing that was evaluated stops it, but not everything could be evaluated")
		for _, s := range n.NotEvaluated[:min(len(n.NotEvaluated), mostNotEvaluated)] {
			line("  not evaluated: %s", s)
		}
	case n.By != "" && !n.Own:
		who := ", not by kube-proxy"
		if strings.HasSuffix(n.By, "(of kube-proxy)") {
			who = ", by a rule of kube-proxy that is not in the table"
		}
		line("%s on this node%s: %s", strings.ToUpper(string(n.Verdict)), who, n.By)
		line("  at %s, %s", n.Stage, n.harmed())
		if n.Do != "" {
			line("  do: %s", n.Do)
		}
	}
	return b.String()
}

// mostNotEvaluated is how many things that cannot be judged a screen lists.
const mostNotEvaluated = 3

// harmed says how many connections meet an obstacle.
func (n *Node) harmed() string {
	if n.Share > 1-1e-6 {
		return "all new connections"
	}
	s := fmt.Sprintf("%.0f %% of new connections", 100*n.Share)
	if len(n.Backends) > 0 {
		words := make([]string, len(n.Backends))
		for i, b := range n.Backends {
			words[i] = b.String()
		}
		s += ": " + strings.Join(words, ", ")
	}
	return s
}

// Text returns the path through the node; with the rules that matched if wide.
func (n *Node) Text(wide bool) string {
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(lb.Printable(fmt.Sprintf(format, args...)) + "\n") }
	line("this node: %s", n.Verdict)
	for i := 0; i < len(n.Steps); {
		s, texts := n.Steps[i], []string{}
		for ; i < len(n.Steps) && n.Steps[i].Reply == s.Reply; i++ {
			texts = append(texts, n.Steps[i].Stage+" "+n.Steps[i].Text)
		}
		line("  %s: %s", map[bool]string{false: "packet", true: "reply"}[s.Reply], strings.Join(slices.Compact(texts),
			"; "))
	}
	if len(n.Steps) == 0 {
		line("  no step")
	}
	most := mostNotEvaluated
	if wide {
		most = math.MaxInt
	}
	list := func(word string, all []string) {
		for i, s := range all {
			if i == most {
				line("  and %s", plural.Count(len(all)-i, "other", "others"))
				break
			}
			line("  %s%s", word, s)
		}
	}
	list("not evaluated: ", n.NotEvaluated)
	list("warning: ", n.Warnings)
	if wide && len(n.Rules) > 0 {
		line("rules that matched on this node, of all programs")
		list("", n.Rules)
	}
	return b.String()
}
