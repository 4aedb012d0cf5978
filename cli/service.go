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
	"strconv"
	"strings"

	"kube-proxy/debug/inspect"
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
			"node, which endpoints are excluded, which addresses are refused or belong to another Service. Without a " +
			"Service it lists those that need attention, the worst first, up to three for each namespace and state.",
		more: "\n  kube-proxy why\n  kube-proxy why shop/web\n",
		ask: func(ctx context.Context, q *queries, args []string) error {
			if len(args) == 0 {
				return q.attention(ctx)
			}
			d, err := get(ctx, q, "service", url.Values{"name": {args[0]}}, func(d *inspect.Detail) {
				q.head(d.Node)
				whyText(q.out, d, q.format == "wide")
			})
			if err != nil {
				return err
			}
			found := d.Severity.Bad()
			if q.format != "json" && q.format != "yaml" {
				found = d.State == inspect.OK && inTheWay(ctx, q, d, args[0]) || found
				found = unanswered(ctx, q, args[0]) || found
			}
			if found {
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

// inTheWay follows a packet of this node to a Service whose objects are in order, and its reply.
func inTheWay(ctx context.Context, q *queries, d *inspect.Detail, said string) (found bool) {
	if !strings.Contains(said, ":") && len(d.Ports) > 1 {
		said += ":" + strconv.Itoa(int(d.Ports[0].Port)) + "/" + strings.ToLower(d.Ports[0].Protocol)
	}
	a := &inspect.TraceAnswer{}
	if err := q.client.Get(ctx, "trace", url.Values{"from": {"node"}, "to": {said}}, a); err != nil || a.Rest == nil {
		return false // without the check no message is printed
	}
	said = lb.Printable(said)
	if a.Kernel != nil && a.Kernel.Passed != "" {
		fmt.Fprintf(q.out, "\neBPF programs do not connect sockets of the node to %s: %s\n", said, a.Kernel.Passed)
	}
	switch {
	case a.Rest.Harmful():
		fmt.Fprintf(q.out, "\n%s  see kube-proxy trace node %s\n", a.Rest.Lead(), said)
		return true
	case a.Rest.Verdict == trace.Delivered:
		fmt.Fprintf(q.out, "\nnothing on this node stops its packets to %s; "+
			"for a pod: kube-proxy trace pod/NAMESPACE/NAME %s\n", lb.Printable(a.Packet.To), said)
		for _, w := range a.Rest.Warnings {
			fmt.Fprintf(q.out, "warning: %s\n", lb.Printable(w))
		}
	case a.Rest.Verdict == trace.Undecided:
		fmt.Fprintf(q.out, "\nthe path on this node could not be evaluated completely: "+
			"kube-proxy trace node %s\n", said)
	}
	return false
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

// headline is a Service in two lines.
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
	fmt.Fprintf(out, "%s  %s  %s\n", lb.Printable(d.Namespace+"/"+d.Name), word(d.Type),
		lb.Printable(strings.Join(at, ", ")))
	state := inkFor(out).of(string(d.Severity), word(d.State))
	if d.Why != "" {
		state += ": " + lb.Printable(d.Why)
	}
	fmt.Fprintf(out, "%s\n", state)
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
	zones := wide || out && slices.ContainsFunc(f.Endpoints, func(e inspect.Endpoint) bool { return e.Zone != "" })
	head := []string{"  ENDPOINT", "NODE"}
	if zones {
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
		if zones {
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
		columns(w, lines)
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
	headline(out, d)
	if len(d.Reasons) > 0 {
		io.WriteString(out, "\n")
	}
	for _, r := range d.Reasons {
		fmt.Fprintf(out, "  %s\n", lb.Printable(r))
	}
	if len(d.Reasons) == 0 && d.State == inspect.OK {
		io.WriteString(out, "\n  Nothing is wrong on this node. "+
			"kube-proxy trace follows a packet, kube-proxy diff checks the kernel.\n")
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
