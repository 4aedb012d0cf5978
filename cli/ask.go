package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"kube-proxy/config"
	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// queryCommand is a command that queries a running proxy, or a folder of manifests.
type queryCommand struct {
	name, args, about string // for --help
	short             string // the line of it in the list of commands
	more              string // its own flags, examples
	flags             func(*cobra.Command)
	// least and most are how many arguments it takes.
	least, most int
	// takes returns the completions after these arguments: whether the name of a Service may
	// follow, and other words; nil for none.
	takes func(args []string) (service bool, words []string)
	// single: it concerns one node and prints no answer, so it has neither --output nor --watch.
	single bool
	// source: the first of its arguments is where a packet begins.
	source bool
	// ask sends one query.
	ask func(context.Context, *queries, []string) error
	// watch, if set, runs until ctx ends; if nil, ask is called repeatedly.
	watch func(context.Context, *queries, []string) error
	// merge prints the answers of several nodes, of those that answered, as JSON; if nil, equal
	// texts are printed once.
	merge func(out io.Writer, answers []nodeAnswer, wide bool) error
}

// queries holds the connection and the output format of one call of a command.
type queries struct {
	client *api.Client
	out    io.Writer
	errOut io.Writer
	format string // "", wide, json, yaml
	// repeats: the whole answer is printed repeatedly, and for people with the time, on a terminal
	// in place of the last one.
	repeats bool
	shown   int // answers
	// merged: the answer is one of many nodes, and does not name its own.
	merged bool
}

// askEveryTime is the time between two questions of --watch.
const askEveryTime = 2 * time.Second

// askCommands returns the commands that query.
func (p *program) askCommands() []*cobra.Command {
	var all []*cobra.Command
	for _, a := range queryCommands() {
		all = append(all, p.ask(a))
	}
	return all
}

func queryCommands() []queryCommand {
	return []queryCommand{statusQuery(), traceQuery(), tableQuery(), backendsQuery(), probeQuery(), whyQuery(),
		diffQuery(),
		eventsQuery(), topQuery(), uiQuery(), reportQuery(), connectQuery()}
}

func (p *program) ask(a queryCommand) *cobra.Command {
	q := &queries{out: p.out, errOut: p.errOut}
	var output string
	var watch bool
	cmd := &cobra.Command{Use: a.name, Short: a.short, Args: cobra.ArbitraryArgs}
	opts := p.options(cmd, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if q.format, err = a.checked("kube-proxy", args, output); err != nil {
			return err
		}
		if q.client, err = askWhom(cmd, opts, p.modes, p.errOut); err != nil {
			return reported(err)
		}
		if watch {
			return reported(a.watching(cmd.Context(), q, args))
		}
		return reported(a.ask(cmd.Context(), q, args))
	}
	a.printFlags(cmd, &output, &watch)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.FlagError(cmd.Flags(), err) })
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(p.out, a.help("kube-proxy", askFlags)) })
	cmd.ValidArgsFunction = a.completes(opts, p.modes)
	return cmd
}

// checked returns the format of output, after a look at the number of arguments.
func (a queryCommand) checked(program string, args []string, output string) (string, error) {
	if len(args) < a.least || len(args) > a.most {
		return "", fmt.Errorf("want %s %s %s (see %[1]s %[2]s --help)", program, a.name, a.args)
	}
	if !slices.Contains([]string{"", "wide", "json", "yaml"}, output) {
		return "", config.Problems{{Where: "--output", Value: output, Want: "want json, yaml or wide"}}
	}
	return output, nil
}

// printFlags adds the flags for answers, and those of the command itself.
func (a queryCommand) printFlags(cmd *cobra.Command, output *string, watch *bool) {
	if !a.single {
		cmd.Flags().StringVarP(output, "output", "o", "", "")
		cmd.Flags().BoolVarP(watch, "watch", "w", false, "")
		completeFlag(cmd, "output", "json", "wide", "yaml")
	}
	if a.flags != nil {
		a.flags(cmd)
	}
}

// askFlags are the flags with which a command on the node finds the proxy.
var askFlags = "      --manifests DIR   answer from objects in this folder, without a proxy (not diff, events, top)\n" +
	"      --admin-socket    socket of the proxy to query, default " + config.AdminSocketOn(runtime.GOOS,
	config.DefaultAdminSocket) + "\n"

func (a queryCommand) help(program, flags string) string {
	usage, printing := " [-o json|yaml|wide] [--watch]", "\n  -o, --output string   json or yaml, with stable fields "+
		"for programs; or wide, with more columns\n"+
		"  -w, --watch           repeat until interrupted\n"
	if a.single {
		usage, printing = "", ""
	}
	text := fmt.Sprintf("Usage: kube-proxy %s%s [flags]\n\n", strings.TrimSpace(a.name+" "+a.args), usage) +
		wrapped(a.about) + a.more + printing
	return strings.ReplaceAll(text, "kube-proxy "+a.name, program+" "+a.name) + flags + fmt.Sprintf(
		"\nExit codes: 0 answered, no problem; 1 invalid query, such as an unknown Service; %d answered, a problem;\n"+
			"%d no proxy answered, or trace cannot decide. docs/ask.md has examples.\n", ExitFound, ExitNotAsked)
}

// watching queries until ctx ends.
func (a queryCommand) watching(ctx context.Context, q *queries, args []string) error {
	if a.watch != nil {
		return a.watch(ctx, q, args)
	}
	for q.repeats = true; ; {
		var found exitCode
		if err := a.ask(ctx, q, args); err != nil && !errors.As(err, &found) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askEveryTime):
		}
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := rawOf(w).(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// askWhom is the proxy that runs, or this process for a folder of manifests.
func askWhom(cmd *cobra.Command, opts *config.Options, modes mode.List, errOut io.Writer) (*api.Client, error) {
	flag := cmd.Flags().Lookup("admin-socket")
	path := config.AdminSocketOn(runtime.GOOS, flag.Value.String())
	if opts.Manifests != "" || opts.ConfigFile != "" && !flag.Changed {
		cfg, err := complete(opts, nil)
		if err != nil {
			return nil, err
		}
		if cfg.Manifests != "" {
			about, err := offline(cfg, modes, errOut)
			if err != nil {
				return nil, err
			}
			return api.Local(about), nil
		}
		path = cfg.Servers.AdminSocket
	}
	if path == "" || flag.Changed && flag.Value.String() == "" {
		return nil, fmt.Errorf("%w: the admin socket is turned off (--admin-socket)", api.ErrNotAsked)
	}
	return api.NewClient(path), nil
}

// asked is the end of a query command, with its exit code.
type asked struct {
	error
	code int
}

func (a asked) Unwrap() error { return a.error }

// reported gives a query's error its exit code and text.
func reported(err error) error {
	var p *inspect.Problem
	switch {
	case errors.Is(err, context.Canceled):
		return nil // interrupted by the user
	case errors.Is(err, api.ErrNotAsked):
		return asked{err, ExitNotAsked}
	case errors.As(err, &p):
		text := p.Text
		if p.Kind == inspect.Unknown && len(p.Candidates) > 0 {
			text += "; candidates:"
		}
		for _, c := range p.Candidates {
			text += "\n  " + lb.Printable(c)
		}
		code := 1
		if p.Kind == inspect.Unavailable {
			code = ExitNotAsked
		}
		return asked{errors.New(text), code}
	}
	return err
}

// get sends a query, and prints the answer for programs, or calls text to print it for people.
func get[T any](ctx context.Context, q *queries, query string, params url.Values, text func(*T)) (*T, error) {
	var raw json.RawMessage
	if err := q.client.Get(ctx, query, params, &raw); err != nil {
		return nil, err
	}
	return show(q, raw, text)
}

// decode reads an answer.
func decode[T any](raw json.RawMessage) (*T, error) {
	answer := new(T)
	if err := json.Unmarshal(raw, answer); err != nil {
		return nil, fmt.Errorf("%w: unknown answer format: %w", api.ErrNotAsked, err)
	}
	return answer, nil
}

// show prints an answer.
func show[T any](q *queries, raw json.RawMessage, text func(*T)) (*T, error) {
	answer, err := decode[T](raw)
	if err != nil {
		return nil, err
	}
	if done, err := q.program(raw); done {
		return answer, err
	}
	text(answer)
	return answer, nil
}

// head is the first line of an answer for people: it names the node. An answer that repeats comes
// after the last one, or on a terminal in its place; the time is as in events.
func (q *queries) head(node string) {
	if q.merged {
		return
	}
	s := "node " + lb.Printable(node)
	if q.repeats {
		s += " at " + time.Now().UTC().Format(time.DateTime) + " UTC"
		on, is := q.out.(*screen)
		switch {
		case is && isTerminal(on):
			on.clear()
		case q.shown > 0:
			s = "\n" + s
		}
		q.shown++
	}
	io.WriteString(q.out, s+"\n")
}

// program prints an answer for programs, with all fields from the proxy; it reports whether that
// format was requested.
func (q *queries) program(raw json.RawMessage) (bool, error) {
	switch q.format {
	case "json":
		return true, printJSON(q.out, raw)
	case "yaml":
		text, err := yaml.JSONToYAML(escapeJSON(raw, 0xffff)) // YAML has no control characters, and no surrogates
		if err != nil {
			return true, err
		}
		if q.shown++; q.shown > 1 {
			text = append([]byte("---\n"), text...)
		}
		_, err = q.out.Write(text)
		return true, err
	}
	return false, nil
}
