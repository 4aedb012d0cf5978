package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kube-proxy/cli/preflight"
	"kube-proxy/config"
	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/internal/plural"
	"kube-proxy/internal/system"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/source/kube"
)

// checkHelp is the help of "kube-proxy check".
func checkHelp() string {
	return "Usage: kube-proxy check [-o text|json] [--problems] [--load-modules] [flags]\n\n" +
		wrapped("Inspects this node for a proxy with the same flags, or without any for the one that runs, and "+
			"reports what would hinder the proxy, why it matters and what to do. It changes nothing on the node. "+
			"It loads kernel modules only with "+
			"--load-modules, which also tries the modes that need one. Run it as root in the node's network "+
			"namespace; without the necessary rights a finding is unknown. docs/check.md lists all kinds of "+
			"findings.") + "\n" +
		fmt.Sprintf("Exit codes: %d only ok and info; 1 invalid command line or configuration; "+
			"%d an error among the findings;\n%d a warning or unknown, but no error.\n\n",
			preflight.ExitOK, preflight.ExitErrors, preflight.ExitWarnings) +
		"  -o, --output string   text, or json: {version, node, mode, runs, worst, exitCode, " +
		"findings: [{id, severity, about, seen, why, remedy}]}\n" +
		"      --problems        list only errors, warnings and unknowns; with json, print only the findings\n" +
		"      --load-modules    let the kernel load the modules that a mode needs, as the proxy would\n\n" +
		"Accepts all flags of kube-proxy, see kube-proxy --help.\n"
}

// check is "kube-proxy check".
func (p *program) check() *cobra.Command {
	var load, problems bool
	var source string
	return p.command(command{
		running: &source,
		name:    "check", short: "inspect this node: what would hinder a proxy with these flags, and the remedy",
		help: checkHelp(), prints: true,
		flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&load, "load-modules", false, "")
			fs.BoolVar(&problems, "problems", false, "")
		},
		run: func(ctx context.Context, cfg *config.Config, json bool) error {
			s := preflightSetup(cfg, p.modes)
			s.LoadModules, s.Source = load, source
			facts := preflight.Look(ctx, s)
			findings := preflight.Judge(s, facts)
			r := CheckReport{1, cfg.NodeName, cfg.Mode, preflight.Runs(s, facts), preflight.Worst(findings),
				preflight.Exit(findings), findings}
			if problems {
				r.Findings = slices.DeleteFunc(findings, func(f preflight.Finding) bool {
					return f.Severity == preflight.OK || f.Severity == preflight.Info
				})
			}
			if err := printFindings(p.out, json, r); err != nil {
				return fmt.Errorf("print the findings: %w", err)
			}
			if r.ExitCode != preflight.ExitOK {
				return exitCode(r.ExitCode)
			}
			return nil
		},
	})
}

// ofRunning lets a command without flags of a proxy be about the proxy that runs, and returns the
// source of the configuration.
func ofRunning(cmd *cobra.Command, opts *config.Options) (source string) {
	own := []string{"output", "problems", "load-modules", "admin-socket"}
	given := false
	cmd.Flags().Visit(func(f *pflag.Flag) { given = given || !slices.Contains(own, f.Name) })
	if given {
		return "the flags of this command, and the file that they name"
	}
	path := config.AdminSocketOn(runtime.GOOS, cmd.Flags().Lookup("admin-socket").Value.String())
	client := api.NewClient(path)
	var object json.RawMessage
	var status inspect.Status
	err := client.Get(cmd.Context(), "configuration", nil, &object)
	if err == nil {
		err = client.Get(cmd.Context(), "status", nil, &status)
	}
	if err != nil {
		return "the defaults: " + err.Error()
	}
	opts.Running(object, status.Manifests)
	return "the kube-proxy that runs on " + status.Node + ", by its admin socket " + path
}

// inTheWay asks the proxy that runs on this node for rules of other programs in the way of the
// Services that it knows.
func inTheWay(socket string) func(context.Context) ([]preflight.InTheWay, error) {
	return func(ctx context.Context) (all []preflight.InTheWay, err error) {
		var status inspect.Status
		err = api.NewClient(socket).Get(ctx, "status", nil, &status)
		for _, f := range status.OtherRules() {
			all = append(all, preflight.InTheWay{Seen: f.Text, Next: f.Next})
		}
		return all, err
	}
}

// preflightSetup derives from the configuration what would run.
func preflightSetup(cfg *config.Config, modes mode.List) *preflight.Setup {
	quiet := slog.New(slog.DiscardHandler)
	hostname, _ := os.Hostname() // without it, there is nothing to compare
	s := &preflight.Setup{
		Modes: modes, Configured: cfg.Mode, Families: wiring.Families(cfg, quiet),
		NodeName: cfg.NodeName, Hostname: hostname, PodCIDRs: cfg.ClusterCIDRs, PodInterface: cfg.DetectLocal.Interface,
		Healthz: cfg.Servers.Healthz, Metrics: cfg.Servers.Metrics,
		WriterGroup: wiring.WriterGroup,
		InTheWay:    inTheWay(cfg.Servers.AdminSocket),
		With:        func(f lb.Family) mode.Settings { return wiring.Probe(cfg, f) },
		Host: func(m mode.Mode) (system.Settings, error) {
			resolved, err := cfg.For(m)
			return (&wiring.Config{Config: cfg, Resolved: resolved}).Host(), err
		},
	}
	if cfg.Manifests == "" {
		kc := wiring.API(cfg, quiet)
		s.API = func(ctx context.Context) *preflight.Cluster { return clusterFacts(kube.Look(ctx, kc)) }
	}
	return s
}

// clusterFacts converts the answers of an API server.
func clusterFacts(l kube.Looked) *preflight.Cluster {
	c := &preflight.Cluster{Server: l.Host}
	c.Version.Value, c.Version.Err = l.Version, l.Err
	c.Node.Value, c.Node.Err = preflight.Node{Found: l.Node, Addrs: l.Addrs}, l.NodeErr
	c.Denied.Value, c.Denied.Err = l.Denied, l.DeniedErr
	c.ServiceCIDRs.Value, c.ServiceCIDRs.Err = l.ServiceCIDRs, l.CIDRsErr
	c.Ahead.Value = l.Ahead
	return c
}

// CheckReport is the output of check -o json. Its fields are an interface: more may be added.
type CheckReport struct {
	// Version is the version of this format, 1.
	Version  int                 `json:"version"`
	Node     string              `json:"node"`
	Mode     string              `json:"mode"` // configured; "" for the best that the host supports
	Runs     string              `json:"runs"` // the mode that would run; "" if none could, or that is not known
	Worst    preflight.Severity  `json:"worst"`
	ExitCode int                 `json:"exitCode"`
	Findings []preflight.Finding `json:"findings"`
}

func printFindings(out io.Writer, asJSON bool, r CheckReport) error {
	if asJSON {
		return printJSON(out, r)
	}
	_, err := io.WriteString(out, findingsText(inkFor(out), r.Findings))
	return err
}

// findingsText is for people: a line for each finding; below it the reason and the remedy, if any.
func findingsText(ink ink, all []preflight.Finding) string {
	var b strings.Builder
	width := 0
	for _, f := range all {
		width = max(width, len(f.ID))
	}
	indent := strings.Repeat(" ", len("warning")+2+width+2)
	counts := map[preflight.Severity]int{}
	same := 0 // findings of this kind and severity, so far
	for n, f := range all {
		counts[f.Severity]++
		if same++; n == 0 || all[n-1].ID != f.ID || all[n-1].Severity != f.Severity {
			same = 1
		}
		last := n+1 == len(all) || all[n+1].ID != f.ID || all[n+1].Severity != f.Severity
		if same > maxAlike && last {
			fmt.Fprintf(&b, "%sand %s\n", indent,
				plural.Count(same-maxAlike, "more finding like these", "more findings like these"))
		}
		if same > maxAlike {
			continue
		}
		seen := f.Seen
		if f.About != "" {
			seen = f.About + ": " + seen
		}
		fmt.Fprintf(&b, "%s  %-*s  %s\n", ink.of(string(f.Severity), fmt.Sprintf("%-7s", f.Severity)), width, f.ID,
			lb.Printable(strings.ReplaceAll(seen, "\n", "; ")))
		for _, more := range []struct{ word, text string }{{"why", f.Why}, {"do", f.Remedy}} {
			if more.text == "" || f.Severity == preflight.Info {
				continue
			}
			for i, line := range strings.Split(strings.TrimSpace(wrapped(more.text)), "\n") {
				word := more.word + ":"
				if i > 0 {
					word = ""
				}
				fmt.Fprintf(&b, "%s%-4s %s\n", indent, word, line)
			}
		}
	}
	var sum []string
	for _, s := range []preflight.Severity{
		preflight.Error, preflight.Warning, preflight.Unknown, preflight.Info, preflight.OK,
	} {
		if counts[s] > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	if sum == nil {
		sum = []string{"no problems"}
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(sum, ", "))
	return b.String()
}

// maxAlike is how many findings of one kind and severity people are shown in sequence.
const maxAlike = 5
