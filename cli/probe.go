package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/fold"
	"kube-proxy/internal/plural"
	"kube-proxy/lb"
)

// probeQuery is "kube-proxy probe".
func probeQuery() queryCommand {
	return queryCommand{
		name: "probe", args: "SERVICE[:PORT]", least: 1, most: 1, takes: oneService,
		short: "which endpoints of a Service answer this node, and what stops the others",
		about: "Connects from this node to each ready TCP endpoint of a Service, up to three times within 600 ms, " +
			"and prints the result: answers; refuses (nothing listens there, check targetPort); prohibited (a " +
			"firewall rejects it); silent; no route. It sends no data. A NetworkPolicy may treat this node otherwise " +
			"than pods.",
		more: "\n  kube-proxy probe shop/web\n",
		ask: func(ctx context.Context, q *queries, args []string) error {
			p, err := get(ctx, q, "probe", url.Values{"name": {args[0]}}, func(p *inspect.Probes) {
				q.head(p.Node)
				probeText(q.out, p)
			})
			if err != nil {
				return err
			}
			if len(p.Failed()) > 0 {
				return exitCode(ExitFound)
			}
			return nil
		},
	}
}

func probeText(out io.Writer, p *inspect.Probes) {
	if len(p.Probes) == 0 {
		fmt.Fprintf(out, "%s has no endpoint\n", lb.Printable(p.Service))
		return
	}
	rows := [][]string{{"SERVICE", "ENDPOINT", "NODE", "RESULT", "TIME", ""}}
	for _, x := range p.Probes {
		took := "-"
		if x.Milliseconds > 0 {
			took = fmt.Sprintf("%.1f ms", x.Milliseconds)
		}
		rows = append(rows, []string{lb.Printable(x.Service), x.Address.String(), orDash(lb.Printable(x.Node)),
			x.Result, took, lb.Printable(x.Note)})
	}
	columns(out, rows, false)
	if p.More > 0 {
		fmt.Fprintf(out, "%s not probed\n", plural.Count(p.More, "more endpoint was", "more endpoints were"))
	}
}

// unansweredText has a line for each endpoint that did not answer, and says how many did.
func unansweredText(out io.Writer, p *inspect.Probes) {
	failed, sent := p.Failed(), p.Sent()
	switch {
	case sent == 0:
		return
	case len(failed) == 0 && sent == 1:
		fmt.Fprint(out, "\nthe endpoint answers this node\n")
	case len(failed) == 0:
		fmt.Fprintf(out, "\nall %d probed endpoints answer this node\n", sent)
	default:
		fmt.Fprintf(out, "\n%d of %s not answer this node as they should:\n", len(failed),
			plural.Count(sent, "probed endpoint does", "probed endpoints do"))
	}
	for n, x := range failed {
		if n == maxUnanswered {
			fmt.Fprintf(out, "  and %d more: kube-proxy probe %s\n", len(failed)-n, lb.Printable(p.Service))
			break
		}
		line := fmt.Sprintf("  %s  %s: %s\n", x.Address, lb.Printable(x.Result), lb.Printable(x.Note))
		io.WriteString(out, fold.Text(line, fold.Width))
	}
}

// maxUnanswered is how many endpoints are named outside of "kube-proxy probe".
const maxUnanswered = 5
