// Command kube-proxy makes the Services of a cluster work on one node: it turns Services and EndpointSlices
// into state of the kernel.
//
// This package is the only place that knows all others: flags and file (config), a source of events (source/…),
// for each IP family an engine with a data plane (plane/…), and what observes applied changes (conntrack).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"kube-proxy/config"
	"kube-proxy/logging"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
)

func main() { run(all.Modes()) }

// run is the program, with these modes.
func run(modes mode.List) {
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	out, errOut := standard()
	if err := command(modes, out, errOut, arguments(os.Args)).ExecuteContext(ctx); err != nil {
		code, told := ended(err)
		if !told {
			printError(errOut, err)
		}
		os.Exit(code)
	}
}

// plugin is the name by which kubectl finds the program as "kubectl proxy-trace".
const plugin = "kubectl-proxy_trace"

// arguments are those of the command line: as a plugin of kubectl the program is its command trace.
func arguments(commandLine []string) []string {
	if filepath.Base(commandLine[0]) == plugin {
		return append([]string{"trace"}, commandLine[1:]...)
	}
	return commandLine[1:]
}

// printError prints each thing that is wrong in a line of its own. What is wrong with the command line comes
// with a hint to --help, not with all of it: the message must not scroll away.
func printError(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(w, "kube-proxy: %s\n", plain(line))
	}
	if errors.As(err, new(config.Problems)) {
		fmt.Fprintln(w, "kube-proxy --help lists all flags")
	}
}

func command(modes mode.List, out, errOut io.Writer, commandLine []string) *cobra.Command {
	opts := config.NewOptions(modes)
	cmd := &cobra.Command{
		Use:           "kube-proxy",
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
		Args:                       cobra.ArbitraryArgs, // config reports them with all other problems (FL-01)
		RunE: func(cmd *cobra.Command, args []string) error {
			if print, raw := opts.PrintsVersion(); print {
				return printVersion(out, raw)
			}
			cfg, err := complete(opts, args)
			if err != nil {
				for _, w := range opts.Warnings() {
					fmt.Fprintf(errOut, "kube-proxy: warning: %s\n", w)
				}
				return errors.Join(meant(cmd, args), err)
			}
			return start(cmd.Context(), modes, commandLine, cfg, out, errOut)
		},
	}
	opts.AddFlags(cmd.Flags())
	completeModes(cmd, modes)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.Unparsed(commandLine, err, modes) })
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.CompletionOptions.DisableDefaultCmd = true
	completion := completionCommand(cmd, out)
	commands := append(askCommands(modes, out, errOut), checkCommand(modes, out, errOut, commandLine), selftestCommand(modes, out, errOut), migrateCommand(modes, out, errOut),
		renderCommand(modes, out, errOut, commandLine), completion)
	cmd.AddCommand(commands...)
	cmd.SetHelpCommand(completion) // cobra makes one of its own else: "help" is no command, but an argument too many (FL-01)
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(out, help(commands)); config.Usage(out, modes) })
	cmd.SetArgs(commandLine)
	return cmd
}

// help is what stands above the flags in the help.
func help(commands []*cobra.Command) string {
	var b strings.Builder
	b.WriteString("Usage: kube-proxy [flags]\n       kube-proxy COMMAND [flags]\n\n" +
		"Without a command it makes the addresses of Kubernetes Services work on this machine, until it is ended.\n\n" +
		"Commands, each of which has a --help of its own; none of them writes rules:\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "  %-10s  %s\n", c.Name(), c.Short)
	}
	return b.String()
}

// complete returns the configuration; each of its problems names the file that it is in.
func complete(opts *config.Options, args []string) (*config.Config, error) {
	cfg, err := opts.Complete(args)
	return cfg, named(opts.ConfigFile, err)
}

// named has each problem of a field name the file that it is in.
func named(file string, err error) error {
	if ps, ok := err.(config.Problems); ok { // what else there is names it
		return ps.In(file, "")
	}
	return err
}

// meant is the error of an argument that looks like the name of a command; nil for another.
func meant(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || args[0] == "" {
		return nil
	}
	like := cmd.SuggestionsFor(args[0])
	if len(like) == 0 {
		return nil
	}
	return fmt.Errorf("there is no command %q: did you mean kube-proxy %s?", args[0], strings.Join(like, " or kube-proxy "))
}

// start does what is asked for: to write the configuration, or to run.
func start(ctx context.Context, modes mode.List, args []string, cfg *config.Config, out, errOut io.Writer) (err error) {
	log, err := logging.New(cfg.Logging, out, errOut)
	if err != nil {
		return fmt.Errorf("initialize logging: %w", err)
	}
	defer func() {
		// main prints the error, but whoever reads files or objects does not see that (FL-02).
		if err != nil && (!cfg.Logging.ToStderr || cfg.Logging.Format == "json") {
			log.Logger().Error("kube-proxy ends", "err", err)
		}
		err = errors.Join(err, log.Flush())
	}()
	if cfg.Logging.Verbosity >= 1 {
		for _, line := range cfg.Flags {
			log.Logger().Info(line)
		}
	}
	if cfg.WriteConfigTo == "" && len(cfg.Cleanup) == 0 && !cfg.InitOnly {
		p := newProxy(modes, args, cfg, log, log.Logger())
		return asService(ctx, cfg.Windows.Service, p.run, p.hangUp)
	}
	// Whoever only has a file written, or rules removed, has to know as well what was not heeded.
	for _, w := range cfg.Warnings {
		log.Logger().Warn("configuration", "warning", w)
	}
	switch {
	case cfg.WriteConfigTo != "":
		data, err := cfg.YAML()
		if err != nil {
			return err
		}
		if err := os.WriteFile(cfg.WriteConfigTo, data, 0o644); err != nil {
			return fmt.Errorf("--write-config-to: %w", err)
		}
		return nil
	case len(cfg.Cleanup) > 0:
		return removeRules(ctx, modes, cfg, log.Logger())
	default:
		return newProxy(modes, args, cfg, log, log.Logger()).initOnly(ctx)
	}
}
