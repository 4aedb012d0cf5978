// Package cli has the commands for people: those that query a running proxy (trace, table,
// backends, why, diff, events, top, ui), those that inspect a node, manifests or another proxy
// (check, selftest, render, migrate), and shell completion. None of them writes rules.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kube-proxy/config"
	"kube-proxy/internal/fold"
	"kube-proxy/internal/nearest"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// program has the data that all commands share.
type program struct {
	modes       mode.List
	out, errOut io.Writer
	commandLine []string
}

// New returns the program: without a command it calls start with its configuration.
func New(modes mode.List, out, errOut io.Writer, commandLine []string,
	start func(context.Context, *config.Config) error) *cobra.Command {
	out, errOut = onScreen(out), onScreen(errOut)
	p := &program{modes, out, errOut, commandLine}
	cmd := &cobra.Command{Use: "kube-proxy", SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs} // config reports them with all other problems (FL-01)
	completion := completionCommand(cmd, out)
	commands := append(p.askCommands(), p.check(), p.selftest(), p.migrate(), p.render(), completion)
	cmd.AddCommand(commands...)
	opts := p.options(cmd, false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if print, raw := opts.PrintsVersion(); print {
			return printVersion(out, raw)
		}
		cfg, err := complete(opts, args)
		if err != nil {
			p.warn(opts)
			return errors.Join(meant(cmd, args, "kube-proxy"), err)
		}
		return start(cmd.Context(), cfg)
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.Unparsed(commandLine, err, modes) })
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.CompletionOptions.DisableDefaultCmd = true
	// Cobra otherwise adds one: "help" is no command, but an extra argument (FL-01).
	cmd.SetHelpCommand(completion)
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(out, help(commands)); config.Usage(out, modes) })
	cmd.SetArgs(commandLine)
	return cmd
}

// help returns the text above the flags in the help.
func help(commands []*cobra.Command) string {
	var b strings.Builder
	b.WriteString("Usage: kube-proxy [flags]\n       kube-proxy COMMAND [flags]\n\n" +
		"Without a command, kube-proxy implements Kubernetes Services on this machine until it is stopped.\n\n" +
		"Commands (each has its own --help, none writes rules):\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "  %-10s  %s\n", c.Name(), c.Short)
	}
	return b.String()
}

// meant is the error of an argument that resembles a command's name, or begins one; else nil.
func meant(cmd *cobra.Command, args []string, program string) error {
	if len(args) == 0 || args[0] == "" {
		return nil
	}
	var names, like []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
		if strings.HasPrefix(c.Name(), strings.ToLower(args[0])) {
			like = append(like, c.Name())
		}
	}
	for _, name := range nearest.Of(args[0], slices.Values(names)) {
		if !slices.Contains(like, name) {
			like = append(like, name)
		}
	}
	if len(like) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q: did you mean %s %s?",
		args[0], program, strings.Join(like, " or "+program+" "))
}

// options adds the flags of kube-proxy to a command that the command line may name; else it returns
// nil: the options of all commands would take a fifth of the time of a query. renders is as in
// config.Options.
func (p *program) options(cmd *cobra.Command, renders bool) *config.Options {
	runs := slices.Contains(p.commandLine, cmd.Name())
	if cmd.HasSubCommands() { // the program itself
		first := func(c *cobra.Command) bool { return slices.Index(p.commandLine, c.Name()) == 0 }
		runs = !slices.ContainsFunc(cmd.Commands(), first)
	}
	if !runs {
		return nil
	}
	opts := config.NewOptions(p.modes)
	opts.Renders = renders
	opts.AddFlags(cmd.Flags())
	completeModes(cmd, p.modes)
	return opts
}

// command is a command that takes the flags of kube-proxy, and is about one with these.
type command struct {
	name, short, help string
	renders           bool // it needs nothing that only a serving proxy needs
	prints            bool // it has --output: text or json
	flags             func(*pflag.FlagSet)
	// running: without flags of a proxy, it is about the one that runs. It gets a description of
	// the source, as in "the running kube-proxy"; nil for commands that are about their flags.
	running *string
	run     func(ctx context.Context, cfg *config.Config, json bool) error
}

func (p *program) command(c command) *cobra.Command {
	output := "text"
	cmd := &cobra.Command{Use: c.name, Short: c.short, Args: cobra.ArbitraryArgs}
	opts := p.options(cmd, c.renders)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(output); err != nil {
			return err
		}
		if c.running != nil {
			*c.running = ofRunning(cmd, opts)
		}
		cfg, err := complete(opts, args)
		p.warn(opts)
		if err != nil {
			return err
		}
		return c.run(cmd.Context(), cfg, output == "json")
	}
	if c.prints {
		outputFlag(cmd, &output)
	}
	if c.flags != nil {
		c.flags(cmd.Flags())
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(p.out, c.help) })
	return cmd
}

func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "")
	completeFlag(cmd, "output", "json", "text")
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return config.Problems{{Where: "--output", Value: output, Want: "want text or json"}}
	}
	return nil
}

// complete returns the configuration; each of its problems names the file that it is in.
func complete(opts *config.Options, args []string) (*config.Config, error) {
	cfg, err := opts.Complete(args)
	return cfg, wiring.InFile(opts.ConfigFile, err)
}

// warn prints the warnings of the options.
func (p *program) warn(opts *config.Options) {
	for _, w := range opts.Warnings() {
		fmt.Fprintf(p.errOut, "kube-proxy: warning: %s\n", w)
	}
}

// The exit codes of commands beside 0 and 1.
const (
	// ExitFound: answered, and something is wrong.
	ExitFound = 2
	// ExitNotAsked: no proxy answered, or trace could not decide.
	ExitNotAsked = 3
)

// exitCode is the end of a command that has printed everything, with its own exit code.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Exit prints the error of a command of a program, each fault on its own line, and returns its exit
// code. For an invalid command line it adds a hint to --help, not the whole help: the message must
// not scroll away.
func Exit(errOut io.Writer, program string, err error) int {
	var code exitCode
	if err == nil || errors.As(err, &code) {
		return int(code)
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(errOut, "%s: %s\n", program, lb.Printable(line))
	}
	if errors.As(err, new(config.Problems)) {
		fmt.Fprintln(errOut, program+" --help lists all flags")
	}
	var a asked
	if errors.As(err, &a) {
		return a.code
	}
	return 1
}

// wrapped breaks a text into lines that a terminal shows.
func wrapped(text string) string {
	return fold.Hang(strings.Join(strings.Fields(text), " "), 112, 0) + "\n"
}
