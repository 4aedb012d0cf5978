package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/fold"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// backendsQuery is "kube-proxy backends".
func backendsQuery() queryCommand {
	return queryCommand{
		name: "backends", args: "SERVICE[:PORT]", least: 1, most: 1, takes: oneService,
		short: "the endpoints of a Service: node, condition, use, and why some are excluded",
		about: "Prints the endpoints of a Service by port: node, condition, the sets of backends that contain the " +
			"endpoint (cluster: for all clients; local: for a policy Local), and why the others exclude it.",
		more: "\n  kube-proxy backends shop/web\n  kube-proxy backends web:http -o wide\n",
		ask: func(ctx context.Context, q *queries, args []string) error {
			_, err := get(ctx, q, "service", url.Values{"name": {args[0]}}, func(d *inspect.Detail) {
				q.head(d.Node)
				backendsText(q.out, d, q.format == "wide")
			})
			return err
		},
	}
}

// whyQuery is "kube-proxy why".
func whyQuery() queryCommand {
	return queryCommand{
		name: "why", args: "[SERVICE[:PORT]]", most: 1, takes: oneService,
		short: "which Services need attention; why one has no backends, or excludes some",
		about: "Explains the state of a Service on this node: why it has no backends, why load balancers skip the " +
			"node, which endpoints are excluded, which addresses are refused or belong to another Service. If the " +
			"objects are in order, it follows the packets of three clients through the node, and the replies: of " +
			"the node, of one of its pods, and of an outside client for external addresses. Without a Service it " +
			"lists those that need attention, the worst first, up to three for each namespace and state.",
		more: "\n  kube-proxy why\n  kube-proxy why shop/web\n",
		ask: func(ctx context.Context, q *queries, args []string) error {
			if len(args) == 0 {
				return q.attention(ctx)
			}
			found := false
			d, err := get(ctx, q, "service", url.Values{"name": {args[0]}, "paths": {"true"}},
				func(d *inspect.Detail) {
					q.head(d.Node)
					headline(q.out, d)
					found = unanswered(ctx, q, args[0])
					whyText(q.out, d, q.format == "wide")
				})
			if err != nil {
				return err
			}
			if found || d.Severity.Bad() ||
				slices.ContainsFunc(d.Paths, func(p inspect.Path) bool { return p.Wrong }) {
				return exitCode(ExitFound)
			}
			return nil
		},
	}
}

// attention lists the Services that need attention.
func (q *queries) attention(ctx context.Context) error {
	a, err := get(ctx, q, "attention", nil, func(a *inspect.Attention) {
		q.head(a.Node)
		attentionText(q.out, a)
	})
	if err == nil && a.Services > 0 {
		return exitCode(ExitFound)
	}
	return err
}

// pathsText prints what stops the packets of clients first, then the clients whose packets pass.
func pathsText(out io.Writer, d *inspect.Detail) {
	if len(d.Paths) == 0 {
		return
	}
	io.WriteString(out, "\n")
	ink := inkFor(out)
	for n, p := range d.Paths {
		same := func(o inspect.Path) bool { return slices.Equal(o.Lead, p.Lead) }
		if len(p.Lead) == 0 || slices.ContainsFunc(d.Paths[:n], same) {
			continue
		}
		for _, line := range p.Lead {
			io.WriteString(out, ink.verdicts(fold.Text(lb.Printable(line)+"\n", fold.Width)))
		}
		for _, o := range d.Paths[n:] {
			if same(o) {
				fmt.Fprintf(out, "  for %s\n", pathText(o))
			}
		}
		fmt.Fprintf(out, "  see %s\n", lb.Printable(p.Trace))
	}
	for _, p := range d.Paths {
		switch {
		case len(p.Lead) > 0:
		case p.Verdict == trace.Delivered:
			fmt.Fprintf(out, "%s this node, and so does the reply: %s\n", ink.of("DELIVERED", "passes"), pathText(p))
		case p.Verdict != "":
			fmt.Fprintf(out, "%s, as the table says: %s\n", strings.ToUpper(word(p.Verdict)), pathText(p))
		default:
			io.WriteString(out, fold.Text("not followed: "+pathText(p)+": "+lb.Printable(p.Note)+"\n", fold.Width))
		}
		if p.Passed != "" {
			io.WriteString(out, fold.Text(fmt.Sprintf("  eBPF programs do not connect its sockets: %s\n",
				lb.Printable(p.Passed)), fold.Width))
		}
	}
	var warned []string
	for _, p := range d.Paths {
		for _, w := range p.Warnings {
			if !slices.Contains(warned, w) {
				warned = append(warned, w)
				io.WriteString(out, fold.Text("warning: "+lb.Printable(w)+"\n", fold.Width))
			}
		}
	}
}

// unanswered has the proxy probe the endpoints of a Service, prints those that do not answer, and
// reports whether one is at fault.
func unanswered(ctx context.Context, q *queries, said string) (found bool) {
	p := &inspect.Probes{}
	err := q.client.Get(ctx, "probe", url.Values{"name": {said}}, p)
	var problem *inspect.Problem
	if errors.As(err, &problem) && problem.Kind == inspect.Unavailable {
		return false // nothing runs that could probe
	}
	if err != nil {
		fmt.Fprintf(q.out, "\nthe endpoints were not probed: %s\n", lb.Printable(err.Error()))
		return false
	}
	unansweredText(q.out, p)
	return slices.ContainsFunc(p.Failed(), inspect.Probe.Faulty)
}

// pathText names client and frontend.
func pathText(p inspect.Path) string {
	who := map[string]string{"node": "this node", "pod": "the pod " + p.From, "outside": "a client " + p.From}[p.Client]
	return lb.Printable(who + " to " + p.To)
}

// headline is the state of a Service, and below it its addresses.
func headline(out io.Writer, d *inspect.Detail) {
	var at []string
	for _, a := range d.Addresses {
		text := a.Address.String()
		if a.Kind != lb.ClusterIP.String() {
			text += " (" + a.Kind + ")"
		}
		at = append(at, text)
	}
	if len(at) == 0 {
		at = []string{"no address"}
	}
	why := d.Why
	if d.State == inspect.OK {
		why = "The objects are in order."
	}
	text := fold.Text(word(d.State)+": "+lb.Printable(why)+"\n", fold.Width)
	state, rest, _ := strings.Cut(text, ":")
	io.WriteString(out, inkFor(out).of(string(d.Severity), state)+":"+rest)
	io.WriteString(out, fold.Text(fmt.Sprintf("%s  %s  %s\n", lb.Printable(d.Namespace+"/"+d.Name), word(d.Type),
		lb.Printable(strings.Join(at, ", "))), fold.Width))
}

func backendsText(out io.Writer, d *inspect.Detail, wide bool) {
	headline(out, d)
	for _, f := range d.Families {
		if len(f.Endpoints) == 0 && len(d.Families) > 1 && len(f.Frontends) == 0 {
			continue // a family that the Service does not have
		}
		for _, p := range f.Ports {
			fmt.Fprintf(out, "\n%s  %s  %s%s\n", lb.Printable(p.Service), portText(p), lb.Printable(f.Family),
				setsText(p))
			endpointsText(out, f, p, wide, false)
		}
		if f.MoreEndpoints > 0 {
			fmt.Fprintf(out, "\nand %d more\n", f.MoreEndpoints)
		}
	}
}

// setsText returns the number of endpoints of a port.
func setsText(p inspect.DetailPort) string {
	var s []string
	if p.Cluster {
		s = append(s, fmt.Sprintf("%d in use", p.InCluster))
	}
	if p.Local {
		s = append(s, fmt.Sprintf("%d in use of this node", p.InLocal))
	}
	if len(s) == 0 {
		return ""
	}
	return "  " + strings.Join(s, ", ")
}

// endpointsText prints the endpoints of a port; out: those alone that are left out of something.
func endpointsText(w io.Writer, f inspect.DetailFamily, p inspect.DetailPort, wide, out bool) {
	head := []string{"  ENDPOINT", "NODE"}
	if wide {
		head = append(head, "ZONE")
	}
	head = append(head, "CONDITION", "IN")
	if wide {
		head = append(head, "HINTS")
	}
	lines := [][]string{append(head, "WHY NOT")}
	more := map[string]int{} // endpoints, by why they are excluded
	for _, e := range f.Endpoints {
		if e.Service != p.Service || e.Protocol != p.Protocol || out && e.Why == "" {
			continue
		}
		if out && !wide && len(lines) > maxExcluded {
			more[e.Why]++
			continue
		}
		at := e.Address.String()
		if e.Address.Port() == 0 {
			at = e.Address.Addr().String()
		}
		line := []string{"  " + at, placeText(e.Node, e.Local)}
		if wide {
			line = append(line, placeText(e.Zone, e.SameZone))
		}
		line = append(line, condition(e), orDash(strings.Join(e.In, ",")))
		if wide {
			hints := append([]string{}, e.ForNodes...)
			for _, z := range e.ForZones {
				hints = append(hints, "zone "+z)
			}
			line = append(line, orDash(strings.Join(hints, ",")))
		}
		lines = append(lines, append(line, e.Why))
	}
	if len(lines) > 1 {
		columns(w, lines, wide)
	} else if !out {
		io.WriteString(w, "  no endpoints\n")
	}
	for _, why := range slices.Sorted(maps.Keys(more)) {
		fmt.Fprintf(w, "  and %d more: %s\n", more[why], lb.Printable(why))
	}
}

// maxExcluded is how many excluded endpoints of a port people are shown, without -o wide.
const maxExcluded = 20

func orDash(s string) string { return cmp.Or(s, "-") }

// placeText is a node or a zone.
func placeText(name string, here bool) string {
	if here {
		return name + " (here)"
	}
	return orDash(name)
}

func condition(e inspect.Endpoint) string {
	switch {
	case e.Terminating && e.Serving:
		return "terminating, serves"
	case e.Terminating:
		return "terminating"
	case e.Ready:
		return "ready"
	case e.Serving:
		return "serving, not ready"
	}
	return "not ready"
}

func whyText(out io.Writer, d *inspect.Detail, wide bool) {
	pathsText(out, d)
	if len(d.Reasons) > 0 {
		io.WriteString(out, "\n")
	}
	for _, r := range d.Reasons {
		io.WriteString(out, fold.Text(fmt.Sprintf("  %s\n", lb.Printable(r)), fold.Width))
	}
	for _, f := range d.Families {
		for _, p := range f.Ports {
			left := 0
			for _, e := range f.Endpoints {
				if e.Service == p.Service && e.Protocol == p.Protocol && e.Why != "" {
					left++
				}
			}
			if left > 0 {
				fmt.Fprintf(out, "\n%s  %s  %s%s, excluded:\n",
					lb.Printable(p.Service), portText(p), lb.Printable(f.Family), setsText(p))
				endpointsText(out, f, p, wide, true)
			}
		}
	}
}

func portText(p inspect.DetailPort) string {
	return fmt.Sprintf("%d/%s", p.Port.Port, lb.Printable(p.Protocol))
}
