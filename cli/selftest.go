package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kube-proxy/cli/preflight"
	"kube-proxy/cli/selftest"
	"kube-proxy/config"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/hns"
)

// selftestHelp is the help of the command.
func selftestHelp() string {
	return "Usage: kube-proxy selftest [-o text|json] [--disruptive] [--echo ADDRESS:PORT,...] [flags]\n\n" +
		wrapped("Proves in nine steps that the mode, with the given flags, works on this machine: "+
			strings.Join(selftest.Titles[:], ", ")+". "+
			"On Linux it runs this program in network namespaces of its own and sends packets through it; the node "+
			"does not change. "+
			"On Windows it calls the Host Networking Service (HNS) with documentation addresses: stop the node's "+
			"kube-proxy first. "+
			"Run it as root or administrator. If a step does not apply, its result says why.") + "\n" +
		fmt.Sprintf("Exit codes: 0 nothing failed; 1 invalid command line or configuration; %d a claim failed.\n\n",
			ExitFound) +
		"  -o, --output string   text, or json: one object per line, {step, name, value, result, text, source}\n" +
		"      --disruptive      Windows: restart HNS (step 8)\n" +
		"      --echo list       Windows: addresses of servers that run `agnhost netexec` (step 7)\n" +
		"      --echo-vip ip     Windows: address for their load balancer, default 198.51.100.1; in overlay " +
		"networks,\n                        an unused address of the service network\n\n" +
		"Accepts all flags of kube-proxy, see kube-proxy --help. docs/windows.md describes the steps.\n"
}

// selftestTimeout is the time that a change may take; selftestSizes are the sizes of step 6.
const selftestTimeout = 30 * time.Second

var selftestSizes = []int{10, 100, 1000}

// selftest is the command "kube-proxy selftest".
func (p *program) selftest() *cobra.Command {
	var echo []string
	var echoVIP string
	var disruptive bool
	return p.command(command{
		name: "selftest", short: "prove with packets, in nine steps, that a mode works on this machine",
		help:   selftestHelp(),
		prints: true,
		flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&disruptive, "disruptive", false, "")
			fs.StringSliceVar(&echo, "echo", nil, "")
			fs.StringVar(&echoVIP, "echo-vip", "198.51.100.1", "")
		},
		run: func(ctx context.Context, cfg *config.Config, json bool) error {
			test, err := selftestOf(ctx, cfg, p.modes, echo, echoVIP, disruptive)
			if err != nil {
				return err
			}
			printer := &selftestPrinter{out: p.out, json: json}
			if !selftest.Run(ctx, test, printer.print) {
				return exitCode(ExitFound)
			}
			return printer.err
		},
	})
}

// selftestOf configures the test on this machine.
func selftestOf(ctx context.Context, cfg *config.Config, modes mode.List, echo []string, echoVIP string,
	disruptive bool) (selftest.Config, error) {
	test := selftest.Config{Configured: cfg.Mode, Sizes: selftestSizes, Timeout: selftestTimeout,
		Dial: new(net.Dialer).DialContext}
	var err error
	if test.EchoVIP, err = netip.ParseAddr(echoVIP); err != nil || !test.EchoVIP.Is4() {
		return test, config.Problems{{Where: "--echo-vip", Value: echoVIP, Want: "want an IPv4 address"}}
	}
	for _, e := range echo {
		at, err := netip.ParseAddrPort(e)
		if err != nil || !at.Addr().Is4() {
			return test,
				config.Problems{
					{Where: "--echo", Value: e, Want: "want an IPv4 address and a port, such as 10.1.1.11:8080"}}
		}
		test.Echo = append(test.Echo, at)
	}
	s := preflightSetup(cfg, modes)
	s.API, s.LoadModules = nil, true
	facts := preflight.Look(ctx, s)
	test.Findings = preflight.Judge(s, facts)
	test.Mode = preflight.Runs(s, facts)
	runs, _ := modes.Find(test.Mode)
	test.Terminates = runs.Terminates
	w := hns.ConfigOf(mode.Settings{Blocks: cfg.Blocks})
	test.Plane = hns.Config{Network: cmp.Or(w.Network, os.Getenv("KUBE_NETWORK")), SourceVIP: w.SourceVIP, DSR: w.DSR,
		RootEndpoint: w.RootEndpoint}
	if test.Program, err = os.Executable(); err != nil {
		return test, fmt.Errorf("finding this program: %w", err)
	}
	return test, onThisSystem(&test, disruptive)
}

// selftestPrinter prints lines as they arrive.
type selftestPrinter struct {
	out  io.Writer
	json bool
	step int
	err  error // the first write error
}

func (p *selftestPrinter) print(l selftest.Line) {
	if p.json {
		text, err := json.Marshal(l)
		if err == nil {
			_, err = rawOf(p.out).Write(append(escapeJSON(text, unicode.MaxRune), '\n'))
		}
		p.err = cmp.Or(p.err, err)
		return
	}
	if l.Step != p.step {
		p.step = l.Step
		fmt.Fprintf(p.out, "%d %s\n", l.Step, selftest.Titles[l.Step-1])
	}
	_, err := fmt.Fprintf(p.out, "  %-7s  %-22s  %s\n", cmp.Or(l.Result, "ok"), l.Name,
		lb.Printable(cmp.Or(l.Text, string(l.Value))))
	p.err = cmp.Or(p.err, err)
}
