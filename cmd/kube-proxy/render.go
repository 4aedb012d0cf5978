package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/policy"
	"kube-proxy/source/manifests"
)

const renderHelp = `Usage: kube-proxy render --manifests DIR [flags]

Prints what kube-proxy with the same flags would write to an empty kernel for the objects in DIR, and changes
nothing: in mode iptables the input of iptables-restore --noflush and ip6tables-restore --noflush, in mode
nftables that of nft -f. Needs no privileges. A file that is wrong is told on stderr, the rest is rendered, and the
exit code is 1.

All flags of kube-proxy are taken, see kube-proxy --help; those that have nothing to do with rules mean nothing here.
`

// renderCommand is "kube-proxy render".
func renderCommand(out, errOut io.Writer, commandLine []string) *cobra.Command {
	opts := config.NewOptions()
	cmd := &cobra.Command{
		Use:  "render",
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := opts.Complete(args)
			for _, w := range opts.Warnings() {
				fmt.Fprintf(errOut, "kube-proxy: warning: %s\n", w)
			}
			if err != nil {
				return err
			}
			return render(cfg, out, errOut)
		},
	}
	opts.AddFlags(cmd.Flags())
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return config.Unparsed(slices.DeleteFunc(slices.Clone(commandLine), func(s string) bool { return s == "render" }), err)
	})
	cmd.SetHelpFunc(func(*cobra.Command, []string) { io.WriteString(out, renderHelp) })
	return cmd
}

// errRendered is that something was wrong with what was to be rendered; it has been told.
var errRendered = errors.New("not all of it could be rendered, see above")

func render(cfg *config.Config, out, errOut io.Writer) error {
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
	resolved, err := cfg.For(cmp.Or(cfg.Mode, mode.IPTables))
	if err != nil {
		return err
	}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		table, contests, refused := desired(store, settings(cfg, resolved, fam))
		for _, c := range contests {
			fmt.Fprintf(errOut, "kube-proxy: %s belongs to %s, and not to %s\n", c.Key, c.Winner.Name, c.Loser.Name)
		}
		for _, text := range refused {
			fmt.Fprintf(errOut, "kube-proxy: %s\n", text)
		}
		text, err := rendered(resolved, fam, table)
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

// rendered returns what the plane of the mode writes.
func rendered(r config.Resolved, fam lb.Family, table *lb.Table) ([]byte, error) {
	switch r.Mode {
	case mode.IPTables:
		text, err := iptables.Render(iptablesConfig(r, fam), table)
		program := "iptables"
		if fam == lb.IPv6 {
			program = "ip6tables"
		}
		return append(fmt.Appendf(nil, "# %s-restore --noflush\n", program), text...), err
	case mode.NFTables:
		return nftables.Render(nftablesConfig(r, fam), table)
	default:
		return nil, fmt.Errorf("mode %s: %w", r.Mode, mode.ErrNotBuilt)
	}
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
func desired(store *cluster.Store, s policy.Settings) (*lb.Table, []lb.Contest, []string) {
	table := &lb.Table{Node: policy.ResolveNode(store.Facts(), s)}
	names := store.Names()
	slices.SortFunc(names, func(a, b cluster.Name) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var refused []string
	for _, name := range names {
		v := store.View(name)
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
