package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"kube-proxy/cli/migrate"
	"kube-proxy/config"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// migrateHelp is the help of "kube-proxy migrate".
func migrateHelp(modes mode.List) string {
	return "Usage: kube-proxy migrate [--to MODE] [--distribution NAME] [-o text|json] FILE...\n" +
		"       kube-proxy migrate [--to MODE] [--distribution NAME] [-o text|json] -- FLAG...\n\n" +
		wrapped("Reads the configuration of another kube-proxy, or of Cilium as its replacement. A FILE contains "+
			"ConfigMaps, KubeProxyConfigurations, DaemonSets, Pods or a List of them in YAML or JSON, a command line "+
			"or script, an environment file, a systemd unit (also with docker run), config.yaml of k3s or RKE2, or a "+
			"Cluster of kops; - means stdin. Prints the equivalent configuration to stdout, and to stderr the "+
			"differences and the commands for the cluster, forth and back. Every word of the input is used, reported "+
			"or an error. It reads and changes neither the node nor a cluster.") + "\n" +
		"  --to string           target mode: " + strings.Join(modesToRun(modes), ", ") + "; unchanged by default\n" +
		"  --distribution string whose commands to print: " + strings.Join(migrate.Distributions(), ", ") +
		"; by default what the input shows\n" +
		"  -o, --output string   text, or json on stdout: {version, from, to, config, flags, statements: [{severity, " +
		"about, differs, why, do}], distribution, forth: [{for, run}], back}\n\n" +
		"Severities: info (no action needed), change (clients or operators notice it), missing (something stops " +
		"working).\nExit codes: 0 a configuration was printed; 1 invalid input or command line.\n"
}

// modesToRun are the modes of a node with Linux.
func modesToRun(modes mode.List) []string {
	return modes.Names(func(m mode.Mode) bool { return m.On("linux") })
}

// migrate is "kube-proxy migrate".
func (p *program) migrate() *cobra.Command {
	modes := p.modes
	var to, distribution, output string
	cmd := &cobra.Command{
		Use: "migrate", Short: "convert another kube-proxy's configuration, and list the differences",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			files, flags := args, []string(nil)
			if i := cmd.ArgsLenAtDash(); i >= 0 {
				files, flags = args[:i], args[i:]
			}
			inputs, err := unlessEnded(cmd.Context(), files, flags)
			if err != nil {
				return err
			}
			before, err := migrate.Read(modes, inputs)
			if err != nil {
				return err
			}
			if err := before.On(distribution); err != nil {
				return err
			}
			r, err := migrate.Convert(modes, before, to)
			if err != nil {
				return err
			}
			return printMigration(p.out, p.errOut, output == "json", r)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "")
	cmd.Flags().StringVar(&distribution, "distribution", "", "")
	outputFlag(cmd, &output)
	completeFlag(cmd, "to", modesToRun(modes)...)
	completeFlag(cmd, "distribution", migrate.Distributions()...)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return append(config.FlagError(cmd.Flags(), err), config.Problem{
			Where: "flags of the proxy to migrate come after --: kube-proxy migrate -- --proxy-mode=ipvs"})
	})
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(p.out, migrateHelp(modes)) })
	return cmd
}

// unlessEnded returns the result of [migrationInput], or an error if ctx ends before: input from a
// terminal, or from a pipe without a writer, may never arrive.
func unlessEnded(ctx context.Context, files, flags []string) ([]migrate.Input, error) {
	type result struct {
		inputs []migrate.Input
		err    error
	}
	done := make(chan result, 1)
	go func() {
		inputs, err := migrationInput(files, flags, os.Stdin)
		done <- result{inputs, err}
	}()
	select {
	case r := <-done:
		return r.inputs, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read the input: %w", context.Cause(ctx))
	}
}

// migrationInput reads the files, each up to a little more than the limit; flags are a separate
// command line.
func migrationInput(files, flags []string, stdin io.Reader) (all []migrate.Input, err error) {
	if len(files) == 0 && len(flags) == 0 {
		return nil, errors.New("want a file, - for stdin, or flags after -- (see kube-proxy migrate --help)")
	}
	for _, name := range files {
		in := migrate.Input{Name: name}
		from := io.NopCloser(stdin)
		if name == "-" {
			in.Name = "stdin"
		} else if from, err = os.Open(name); err != nil {
			return nil, err
		}
		in.Data, err = io.ReadAll(io.LimitReader(from, migrate.MostBytes+1))
		from.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.Name, err)
		}
		all = append(all, in)
	}
	if len(flags) > 0 {
		all = append(all, migrate.Input{Name: "the command line after --", Flags: flags})
	}
	return all, nil
}

// MigrateReport is the output of migrate -o json. Its fields are an interface: more may be added.
type MigrateReport struct {
	// Version is the version of this format, 1.
	Version int `json:"version"`
	// From and To are the modes; "" for the best that the machine can do.
	From string `json:"from"`
	To   string `json:"to"`
	// Config is the configuration, as YAML.
	Config string `json:"config"`
	// Flags stay on the command line.
	Flags      []string            `json:"flags"`
	Statements []migrate.Statement `json:"statements"`
	// Distribution is what the cluster is, "" if the input does not show it. Forth are the commands
	// that bring this proxy to it, and Back those of the way back.
	Distribution string         `json:"distribution"`
	Forth        []migrate.Step `json:"forth,omitempty"`
	Back         []migrate.Step `json:"back,omitempty"`
}

func printMigration(out, errOut io.Writer, asJSON bool, r *migrate.Result) error {
	if asJSON {
		m := MigrateReport{1, r.From, r.To, string(r.Config), r.Flags, r.Statements, r.Distribution, r.Forth, r.Back}
		if m.Flags == nil {
			m.Flags = []string{}
		}
		return printJSON(out, m)
	}
	var b strings.Builder
	for _, severity := range []migrate.Severity{migrate.Missing, migrate.Change, migrate.Same} {
		for _, s := range r.Statements {
			if s.Severity != severity {
				continue
			}
			fmt.Fprintf(&b, "%-7s  %s: %s\n", s.Severity, lb.Printable(s.About), lb.Printable(s.Differs))
			if severity != migrate.Same {
				fmt.Fprintf(&b, "         why: %s\n         do:  %s\n", s.Why, s.Do)
			}
		}
	}
	for _, way := range []struct {
		name  string
		steps []migrate.Step
	}{{"commands, with this output in config.yaml", r.Forth}, {"the way back", r.Back}} {
		if len(way.steps) > 0 {
			name := way.name
			if r.Distribution != "" {
				name += " (" + r.Distribution + ")"
			}
			fmt.Fprintln(&b, name+":")
		}
		for _, step := range way.steps {
			fmt.Fprintf(&b, "  # %s\n  %s\n", lb.Printable(step.For), lb.Printable(step.Run))
		}
	}
	if _, err := io.WriteString(errOut, b.String()); err != nil {
		return err
	}
	_, err := out.Write(r.Config)
	return err
}
