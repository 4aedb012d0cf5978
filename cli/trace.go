package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/nearest"
	"kube-proxy/lb"
	"kube-proxy/nodetrace"
	"kube-proxy/trace"
)

// traceQuery is "kube-proxy trace".
func traceQuery() queryCommand {
	var from, in, expect string
	var live time.Duration
	var folder *pflag.Flag
	return queryCommand{
		name: "trace", args: "SRC DST[:PORT][/PROTO]", least: 1, most: 3, source: true,
		short: "what happens to a packet on this node, and why",
		about: "Explains what happens to a packet from SRC to DST: which Service it reaches, which backends answer " +
			"with which probability, and why. Then it prints what the kernel does, the open connections between " +
			"SRC and DST, and the path of packet and reply through the rest of this node: conntrack, routes, other " +
			"tables of the packet filter, neighbours, devices and sysctls. If something stops the packet, or if " +
			"table and kernel differ, that comes first, and the exit code is 2.",
		more: "\nSRC is an address with or without a port, node for this node, " +
			"or a Pod: NAMESPACE/NAME, or pod/NAME if the name is unique.\n" +
			"DST is an address, a Service (NAMESPACE/NAME, a unique name, or its DNS name) or nodeport:PORT.\n" +
			"Port and protocol may be omitted if the Service has only one.\n\n" +
			"  kube-proxy trace 10.1.1.11 10.96.0.10:80\n  kube-proxy trace shop/web-1 shop/cart:http\n" +
			"  kube-proxy trace node nodeport:30080/tcp\n" +
			"\n      --expect string   balance, reject, drop or pass: exit with code 2 if the outcome differs\n" +
			"      --from string     SRC as a flag (--from 10.1.1.11 DST), or \"pod\" if SRC names a Pod " +
			"(--from pod shop/web-1 DST)\n" +
			"      --live[=DURATION] follow a real packet with the kernel's own trace, for 1s or up to 30s, " +
			"and compare; needs root in\n" +
			"                        the node's network namespace. If SRC is this node, " +
			"the command sends a SYN or an empty datagram\n      --in string       the incoming interface, " +
			"for --detect-local-mode=BridgeInterface and InterfaceNamePrefix\n",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&expect, "expect", "", "")
			completeFlag(cmd, "expect", expectations...)
			cmd.Flags().DurationVar(&live, "live", 0, "")
			cmd.Flags().Lookup("live").NoOptDefVal = "1s"
			folder = cmd.Flags().Lookup("manifests")
			cmd.Flags().StringVar(&from, "from", "", "")
			cmd.Flags().StringVar(&in, "in", "", "")
			completeFlag(cmd, "from", "node", "pod")
		},
		takes: func(args []string) (bool, []string) {
			switch said := from != "" && from != "pod"; { // no list of Pods
			case said && len(args) == 0, !said && len(args) == 1:
				return true, []string{"nodeport:"}
			case from == "" && len(args) == 0:
				return false, []string{"node", "pod/"}
			}
			return false, nil
		},
		ask: func(ctx context.Context, q *queries, args []string) error {
			params, err := traceParams(from, in, args)
			if err == nil && expect != "" && !slices.Contains(expectations, expect) {
				err = fmt.Errorf("--expect %s: want %s", lb.Printable(expect), strings.Join(expectations, ", "))
			}
			if err == nil && (live < 0 || live > longestLive) {
				err = fmt.Errorf("--live=%s: want a duration up to %s", live, longestLive)
			}
			if err == nil && live != 0 && folder.Changed {
				err = errors.New("--live follows packets of a node: want no --manifests")
			}
			if err != nil {
				return err
			}
			var raw json.RawMessage
			if err = q.client.Get(ctx, "trace", params, &raw); err == nil && live != 0 {
				raw, err = followLive(ctx, q, raw, live)
			}
			if err != nil {
				return err
			}
			a, err := show(q, raw, func(a *inspect.TraceAnswer) {
				q.head(a.Node)
				io.WriteString(q.out, inkFor(q.out).verdicts(a.Report(q.format == "wide")))
				if a.Probes != nil {
					unansweredText(q.out, a.Probes)
				}
			})
			if err == nil && expect != "" && string(a.Outcome()) != expect {
				fmt.Fprintf(q.errOut, "expected %s, but the outcome is %s\n", expect, a.Outcome())
			}
			if err == nil && (expect == "" && a.Wrong() || expect != "" && string(a.Outcome()) != expect) {
				return exitCode(ExitFound)
			}
			if err == nil && expect == "" && a.Rest != nil && a.Rest.Verdict == trace.Undecided {
				return exitCode(ExitNotAsked)
			}
			return err
		},
	}
}

// longestLive bounds how long the kernel reports on packets.
const longestLive = 30 * time.Second

// followLive adds the path of a real packet to an answer. This process follows it, not the proxy,
// which only answers queries.
func followLive(ctx context.Context, q *queries, raw json.RawMessage, wait time.Duration) (json.RawMessage, error) {
	a, err := decode[inspect.TraceAnswer](raw)
	if err != nil {
		return nil, err
	}
	p := a.Packet.Packet()
	if p.Proto != lb.TCP && p.Proto != lb.UDP {
		return nil, fmt.Errorf("--live follows TCP and UDP only, not %s", lb.Printable(a.Packet.Proto))
	}
	live, err := nodetrace.Live(ctx, p, wait)
	if err != nil {
		return nil, err
	}
	live.Compare(a.Rest)
	a.Live = &live
	if a.Verdict == trace.Balance && p.Proto == lb.TCP {
		a.Probes = &inspect.Probes{}
		if err := q.client.Get(ctx, "probe", url.Values{"name": {a.Service}}, a.Probes); err != nil {
			a.Probes, a.Notes = nil, append(a.Notes, "the endpoints were not probed: "+err.Error())
		}
	}
	return json.Marshal(a)
}

// expectations are the verdicts that --expect takes.
var expectations = []string{string(trace.Balance), string(trace.Reject), string(trace.Drop), string(trace.Pass)}

// traceParams returns the query of the arguments.
func traceParams(from, in string, args []string) (url.Values, error) {
	switch {
	case from == "pod" && len(args) == 2:
		args = []string{"pod/" + args[0], args[1]}
	case from == "pod":
		return nil, fmt.Errorf("want kube-proxy trace --from pod [NAMESPACE/]NAME DST")
	case from != "" && len(args) == 1:
		args = []string{from, args[0]}
	case from != "":
		return nil, fmt.Errorf("--from %s is the source: want only DST after it%s", lb.Printable(from),
			nearest.DidYouMean(from, slices.Values([]string{"pod", "node"}), "--from "))
	case len(args) != 2:
		return nil, fmt.Errorf("want SRC and DST (see kube-proxy trace --help)")
	}
	return inspect.TraceParams(args[0], "", in, args[1]), nil
}
