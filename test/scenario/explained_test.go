package scenario

import (
	"cmp"
	"fmt"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/policy"
)

// maxLines is how many endpoints of a port the text names: it is to fit on one screen.
const maxLines = 12

// explained returns the whole explanation, excluded endpoints first: the sentences that "kube-proxy
// why" and the page show.
func explained(x policy.Explanation) string {
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(lb.Printable(fmt.Sprintf(format, args...)) + "\n") }
	line("%s  %s", x.Service, x.Family)
	if x.Not != "" {
		line("  has no rows. %s", x.Not)
	}
	for _, r := range x.Refused {
		line("  Not served: %s.", r)
	}
	for _, s := range x.Why {
		line("  %s", s)
	}
	for _, p := range x.Ports {
		b.WriteByte('\n')
		line("%s", headline(p))
		for _, s := range p.Why {
			line("  %s", s)
		}
		shown := 0
		for _, out := range []bool{true, false} {
			for _, e := range p.Endpoints {
				if is := e.WhyNotCluster+e.WhyNotLocal != ""; is != out {
					continue
				}
				shown++
				if shown <= maxLines {
					line("    %s", endpoint(e))
				}
			}
		}
		if more := shown - maxLines + p.MoreEndpoints; shown > maxLines {
			line("    and %s", count(more, "other", "others"))
		}
	}
	return b.String()
}

// headline is the port in a line, with the numbers of its backends.
func headline(p policy.ExplainedPort) string {
	s := fmt.Sprintf("%s  %d/%s", p.Service, p.Port.Port, p.Protocol)
	if p.NodePort != 0 {
		s += fmt.Sprintf("  NodePort %d", p.NodePort)
	}
	if p.Cluster {
		s += "  " + count(p.InCluster, "backend", "backends")
	}
	if p.Local {
		s += "  " + count(p.InLocal, "backend", "backends") + " on this node"
	}
	return s
}

// endpoint returns the endpoint and its sets, in a line.
func endpoint(e policy.ExplainedEndpoint) string {
	at := e.Address.String()
	if e.Address.Port() == 0 {
		at = e.Address.Addr().String()
	}
	if e.Node != "" {
		at += " on " + e.Node
	}
	switch {
	case e.InCluster && e.WhyNotLocal != "":
		return at + ": serves, but not where the traffic policy is Local: " + e.WhyNotLocal
	case e.InLocal && e.WhyNotCluster != "":
		return at + ": serves where the traffic policy is Local alone: " + e.WhyNotCluster
	}
	return at + ": " + cmp.Or(e.WhyNotCluster, e.WhyNotLocal, "serves")
}

func count(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
