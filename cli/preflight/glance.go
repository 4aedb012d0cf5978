package preflight

import (
	"context"
	"slices"
)

// Glance returns what is wrong with the node of a running proxy, as far as some reads of the kernel
// show it: the kinds with Live. Whether a packet really passes the rules of other programs is not
// asked; such findings are Info. cluster has the facts that the proxy knows; nil without an API
// server. It costs a few milliseconds and runs no program, so it misses chains of iptables-legacy.
func Glance(ctx context.Context, s *Setup, cluster *Cluster) []Finding {
	kinds := slices.DeleteFunc(Kinds(), func(k Kind) bool { return k.Live == "" })
	found := judgeKinds(kinds, s, glance(ctx, s, cluster))
	live := map[string]Severity{}
	for _, k := range kinds {
		live[k.ID] = k.Live
	}
	wrong := func(f Finding) bool { return f.Severity == Warning || f.Severity == Error }
	found = slices.DeleteFunc(found, func(f Finding) bool { return !wrong(f) })
	for i, f := range found {
		if worse(f.Severity, live[f.ID]) > 0 {
			found[i].Severity = live[f.ID]
		}
	}
	return found
}
