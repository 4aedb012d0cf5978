package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"kube-proxy/cli/preflight"
	"kube-proxy/config"
	"kube-proxy/internal/system"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/source/kube"
)

// checkHelp is the help of "kube-proxy check".
func checkHelp() string {
	return "Usage: kube-proxy check [-o text|json] [--load-modules] [flags]\n\n" +
		wrapped("Looks at this node as the proxy would find it that is started with the same flags, and says what is in the way, why it matters and what "+
			"to do. It changes nothing on the node, and loads no module of the kernel unless --load-modules is given: then modes are tried that need one. "+
			"Run it as root in the node's network namespace; what it cannot find out it says. docs/check.md has all kinds of findings.") + "\n" +
		fmt.Sprintf("Exit codes: %d nothing but ok and info; 1 the command line or the configuration is wrong; %d an error is among the findings;\n"+
			"%d a warning is, or something is not known.\n\n", preflight.ExitOK, preflight.ExitErrors, preflight.ExitWarnings) +
		"  -o, --output string   text, or json: {version, node, mode, runs, worst, exitCode, findings: [{id, severity, about, seen, why, remedy}]}\n" +
		"      --load-modules    have the kernel load modules for the modes that need them, as the proxy would\n\n" +
		"All flags of kube-proxy are taken, see kube-proxy --help.\n"
}

// exitCode is the end of a command that has said all, with an exit code of its own.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// checkCommand is "kube-proxy check".
func checkCommand(modes mode.List, out, errOut io.Writer, commandLine []string) *cobra.Command {
	opts := config.NewOptions(modes)
	var output string
	var load bool
	cmd := &cobra.Command{
		Use: "check", Short: "look at this node: what is in the way of a proxy with these flags, with the remedy",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "text" && output != "json" {
				return config.Problems{{Where: "--output", Value: output, Want: "want text or json"}}
			}
			cfg, err := complete(opts, args)
			for _, w := range opts.Warnings() {
				fmt.Fprintf(errOut, "kube-proxy: warning: %s\n", w)
			}
			if err != nil {
				return err
			}
			s := preflightSetup(cfg, modes)
			s.LoadModules = load
			facts := preflight.Look(cmd.Context(), s)
			findings := preflight.Judge(s, facts)
			if err := printFindings(out, output, report{1, cfg.NodeName, cfg.Mode, preflight.Runs(s, facts), preflight.Worst(findings), preflight.Exit(findings), findings}); err != nil {
				return fmt.Errorf("print the findings: %w", err)
			}
			if code := preflight.Exit(findings); code != preflight.ExitOK {
				return exitCode(code)
			}
			return nil
		},
	}
	opts.AddFlags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "")
	cmd.Flags().BoolVar(&load, "load-modules", false, "")
	completeFlag(cmd, "output", "json", "text")
	completeModes(cmd, modes)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(out, checkHelp()) })
	return cmd
}

// preflightSetup is what the configuration says of what would run.
func preflightSetup(cfg *config.Config, modes mode.List) *preflight.Setup {
	quiet := slog.New(slog.DiscardHandler)
	hostname, _ := os.Hostname() // without, there is nothing to compare
	s := &preflight.Setup{
		Modes: modes, Asked: cfg.Mode, Families: ipFamilies(cfg, quiet),
		NodeName: cfg.NodeName, Hostname: hostname, PodCIDRs: cfg.ClusterCIDRs, PodInterface: cfg.DetectLocal.Interface,
		Healthz: cfg.Servers.Healthz, Metrics: cfg.Servers.Metrics, LocalhostNodePorts: cfg.IPTables.LocalhostNodePorts,
		ConntrackMax: cfg.Conntrack.MaxPerCore, ConntrackMin: cfg.Conntrack.Min, WriterGroup: lockGroup,
		With: func(f lb.Family) mode.Settings {
			return mode.Settings{Family: f, IPVS: ipvsSettings(cfg), Userspace: userspaceSettings(cfg), Windows: windowsSettings(cfg)}
		},
		Host: func(m mode.Mode) (system.Settings, error) {
			resolved, err := cfg.For(m)
			return hostSettings(&configured{cfg, resolved}), err
		},
	}
	if cfg.Manifests == "" {
		kc := apiConfig(cfg, quiet)
		s.API = func(ctx context.Context) *preflight.Cluster { return clusterFacts(kube.Look(ctx, kc), cfg.NodeName) }
	}
	return s
}

// clusterFacts are what an API server said.
func clusterFacts(l kube.Looked, node string) *preflight.Cluster {
	c := &preflight.Cluster{Server: l.Host}
	c.Version.Value, c.Version.Err = l.Version, l.Err
	c.Node.Value, c.Node.Err = preflight.Node{Found: l.Node, Name: node, PodCIDRs: l.PodCIDRs, Addrs: l.Addrs}, l.NodeErr
	c.Denied.Value, c.Denied.Err = l.Denied, l.DeniedErr
	c.ServiceCIDRs.Value, c.ServiceCIDRs.Err = l.ServiceCIDRs, l.CIDRsErr
	c.Ahead.Value = l.Ahead
	return c
}

// report is what -o json prints. Its fields are an interface: they may become more.
type report struct {
	// Version is that of this form, 1.
	Version  int                 `json:"version"`
	Node     string              `json:"node"`
	Mode     string              `json:"mode"` // that is asked for; "" for the best that the host can do
	Runs     string              `json:"runs"` // the mode that would run; "" if none could, or that is not known
	Worst    preflight.Severity  `json:"worst"`
	ExitCode int                 `json:"exitCode"`
	Findings []preflight.Finding `json:"findings"`
}

func printFindings(out io.Writer, as string, r report) error {
	if as == "json" {
		data, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "%s\n", data)
		return err
	}
	_, err := io.WriteString(out, findingsText(r.Findings))
	return err
}

// findingsText is for people: a line for each finding, and below it why and what to do, if anything is to be done.
func findingsText(all []preflight.Finding) string {
	var b strings.Builder
	width := 0
	for _, f := range all {
		width = max(width, len(f.ID))
	}
	indent := strings.Repeat(" ", len("warning")+2+width+2)
	counts := map[preflight.Severity]int{}
	for _, f := range all {
		counts[f.Severity]++
		seen := f.Seen
		if f.About != "" {
			seen = f.About + ": " + seen
		}
		fmt.Fprintf(&b, "%-7s  %-*s  %s\n", f.Severity, width, f.ID, plain(strings.ReplaceAll(seen, "\n", "; ")))
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
	for _, s := range []preflight.Severity{preflight.Error, preflight.Warning, preflight.Unknown, preflight.Info, preflight.OK} {
		if counts[s] > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(sum, ", "))
	return b.String()
}

// plain writes characters that a terminal would obey, such as those in the name of a process or in a file of others, as Go would.
func plain(s string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			fmt.Fprintf(&b, "\\x%02x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// ended reports whether an error is the end of a command that has said all, and its exit code.
func ended(err error) (code int, ok bool) {
	var c exitCode
	if errors.As(err, &c) {
		return int(c), true
	}
	var a asked
	if errors.As(err, &a) {
		return a.code, false
	}
	return 1, false
}
