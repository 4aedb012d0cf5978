package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"

	"kube-proxy/debug/inspect"
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
			for _, x := range p.Probes {
				if x.Result != "answers" && x.Result != "not probed" {
					return exitCode(ExitFound)
				}
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
	columns(out, rows)
	if p.More > 0 {
		fmt.Fprintf(out, "%s not probed\n", plural.Count(p.More, "more endpoint was", "more endpoints were"))
	}
}
