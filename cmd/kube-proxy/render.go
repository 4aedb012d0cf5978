package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/source/manifests"
)

// renderHelp is the help of "kube-proxy render".
func renderHelp(modes mode.List) string {
	var loads []string
	for _, m := range modes {
		if m.Render == nil {
			continue
		}
		what := "that of"
		if len(loads) == 0 {
			what = "the input of"
		}
		loads = append(loads, fmt.Sprintf("in mode %s %s %s", m.Name, what, m.Loader))
	}
	return "Usage: kube-proxy render --manifests DIR [flags]\n\n" +
		wrapped("Prints what kube-proxy with the same flags would write to an empty kernel for the objects in DIR, and changes "+
			"nothing: "+strings.Join(loads, ", ")+". Needs no privileges. A file that is wrong is told on stderr, the rest is rendered, and the "+
			"exit code is 1.") + "\n" +
		"All flags of kube-proxy are taken, see kube-proxy --help; those that have nothing to do with rules mean nothing here.\n"
}

// wrapped breaks a text into lines that a terminal shows.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch {
		case column == 0:
		case column+1+len(word) > 112:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}

// renderCommand is "kube-proxy render".
func renderCommand(modes mode.List, out, errOut io.Writer, commandLine []string) *cobra.Command {
	opts := config.NewOptions(modes)
	cmd := &cobra.Command{
		Use: "render", Short: "print the rules for a folder of manifests",
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := complete(opts, args)
			for _, w := range opts.Warnings() {
				fmt.Fprintf(errOut, "kube-proxy: warning: %s\n", w)
			}
			if err != nil {
				return err
			}
			return render(cfg, modes, out, errOut)
		},
	}
	opts.Renders = true
	opts.AddFlags(cmd.Flags())
	completeModes(cmd, modes)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return config.Unparsed(slices.DeleteFunc(slices.Clone(commandLine), func(s string) bool { return s == "render" }), err, modes)
	})
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(out, renderHelp(modes)) })
	return cmd
}

// errRendered is that something was wrong with what was to be rendered; it has been told.
var errRendered = errors.New("not all of it could be rendered, see above")

func render(cfg *config.Config, modes mode.List, out, errOut io.Writer) error {
	if cfg.Manifests == "" {
		return config.Problems{{Where: "--manifests", Want: "kube-proxy render reads objects from a folder: name it"}}
	}
	objects, problems, err := manifests.Load(os.DirFS(cfg.Manifests))
	if err != nil {
		return fmt.Errorf("--manifests %s: %w", cfg.Manifests, err)
	}
	for _, p := range problems {
		fmt.Fprintf(errOut, "kube-proxy: %s\n", p)
	}
	wrong := len(problems) > 0
	store := filled(cfg.NodeName, objects)
	name := cfg.Mode
	if name == "" { // what every host has that does not matter here
		name = strings.Join(modes.Names(func(m mode.Mode) bool { return m.Unasked == runtime.GOOS })[:1], "")
	}
	m, _ := modes.Find(name)
	switch {
	case !m.Built():
		return fmt.Errorf("mode %s: %w", name, mode.ErrNotBuilt)
	case m.Render == nil:
		return fmt.Errorf("mode %s: there is nothing that another program could load: its rules lead to sockets of the proxy, at ports "+
			"that it takes when it runs; look at those of one that runs: %s", name, m.Show)
	}
	resolved, err := cfg.For(m)
	if err != nil {
		return named(cfg.File, err)
	}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		table, contests, refused := desired(store, fixedBudget(m, &configured{cfg, resolved}, fam))
		for _, c := range contests {
			fmt.Fprintf(errOut, "kube-proxy: %s belongs to %s, and not to %s\n", c.Key, c.Winner.Name, c.Loser.Name)
		}
		for _, text := range refused {
			fmt.Fprintf(errOut, "kube-proxy: %s\n", text)
		}
		text, err := m.Render(planeSettings(&configured{cfg, resolved}, fam), table)
		if err != nil && text == nil {
			return err
		} else if err != nil {
			fmt.Fprintf(errOut, "kube-proxy: %v\n", err)
			wrong = true
		}
		if _, err := io.Copy(out, bytes.NewReader(text)); err != nil {
			return fmt.Errorf("print the rules: %w", err)
		}
	}
	if wrong {
		return errRendered
	}
	return nil
}

// filled returns a store that has been told of the objects, and of nothing else.
func filled(node string, o manifests.Objects) *cluster.Store {
	store := cluster.NewStore(node)
	for _, n := range o.Nodes {
		store.Fold(cluster.NodeSet{Node: n})
	}
	store.Fold(cluster.CIDRsListed{CIDRs: o.CIDRs})
	store.Fold(cluster.SlicesListed{Slices: o.Slices})
	store.Fold(cluster.ServicesListed{Services: o.Services})
	return store
}

// desired is the table of all services in the store, the keys that more than one of them claims, and which addresses are
// not served.
func desired(store *cluster.Store, budget *engine.Budget) (*lb.Table, []lb.Contest, []string) {
	table := &lb.Table{Node: policy.ResolveNode(store.Facts(), budget.Settings(cluster.Name{}))}
	names := store.Names()
	for _, name := range names {
		budget.Weigh(store.View(name))
	}
	slices.SortFunc(names, func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var refused []string
	for _, name := range names {
		v, s := store.View(name), budget.Settings(name)
		for _, r := range policy.Refused(v, s) {
			refused = append(refused, fmt.Sprintf("Service %s: not served: %s", name, r))
		}
		table.Replace(lb.Owner{Name: name.String(), Created: v.Service.Created}, policy.Resolve(v, s))
	}
	var contests []lb.Contest
	for f := range table.All() {
		contests = append(contests, table.Contests(f.Key)...)
	}
	slices.SortFunc(contests, func(a, b lb.Contest) int { return cmp.Or(a.Key.Compare(b.Key), a.Loser.Compare(b.Loser)) })
	return table, contests, refused
}
