package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/debug/inspect"
	"kube-proxy/engine"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/policy"
	"kube-proxy/source/manifests"
)

// offline answers for a folder of manifests, as a proxy with this configuration would have its
// objects.
func offline(cfg *config.Config, modes mode.List, errOut io.Writer) (*inspect.Inspector, error) {
	objects, _, err := load(cfg.Manifests, errOut)
	if err != nil {
		return nil, err
	}
	m := offlineMode(cfg, modes)
	resolved, err := wiring.Resolve(cfg, m)
	if err != nil {
		return nil, err
	}
	node := offlineNode(cfg.NodeName, objects, errOut)
	store := filled(node, objects)
	ic := inspect.Config{Version: cfg.Version, Mode: m, Configured: cfg.Mode, Offline: true, Store: store,
		Local: func() ([]netip.Addr, error) { return held(cfg), nil },
		Pods: func(_ context.Context, pod cluster.Name) (map[cluster.Name][]netip.Addr, error) {
			return manifests.Pods(os.DirFS(cfg.Manifests), pod)
		}}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		budget := budget(resolved, fam)
		table, _, _ := desired(store, budget)
		table.Family = fam
		ic.Families = append(ic.Families, inspect.Family{
			Family: fam, Query: func(f func(*lb.Table)) { f(table) }, Settings: budget.Settings,
			Trace: m.Trace(resolved.Plane(fam)),
		})
	}
	return inspect.New(ic), nil
}

// held are the addresses that the node has besides those of its object.
func held(cfg *config.Config) []netip.Addr {
	all := []netip.Addr{lb.IPv4.Loopback(), lb.IPv6.Loopback()}
	if a := cfg.BindAddress; a.IsValid() && !a.IsUnspecified() {
		all = append(all, a)
	}
	return all
}

// load reads the objects of a folder, and prints their faults.
func load(dir string, errOut io.Writer) (objects manifests.Objects, wrong bool, err error) {
	objects, problems, err := manifests.Load(os.DirFS(dir))
	if err != nil {
		return objects, true, fmt.Errorf("--manifests %s: %w", dir, err)
	}
	for _, p := range problems {
		fmt.Fprintf(errOut, "kube-proxy: %s\n", lb.Printable(p.String()))
	}
	return objects, len(problems) > 0, nil
}

// offlineMode is the configured mode, else the one that every host has.
func offlineMode(cfg *config.Config, modes mode.List) mode.Mode {
	name := cfg.Mode
	if name == "" {
		name = strings.Join(modes.Names(func(m mode.Mode) bool { return m.Unasked == runtime.GOOS })[:1], "")
	}
	m, _ := modes.Find(name)
	return m
}

// budget is the budget of a family where the configuration does not change.
func budget(cfg *wiring.Config, fam lb.Family) *engine.Budget {
	return wiring.Budget(cfg.Resolved.Mode, cfg.Plane(fam), func() policy.Settings { return cfg.Policy(fam) })
}

// offlineNode is the node of the answer: the configured one, or the only one in the folder.
func offlineNode(name string, objects manifests.Objects, errOut io.Writer) string {
	var there []string
	for _, n := range objects.Nodes {
		if n.Name == name {
			return name
		}
		there = append(there, n.Name)
	}
	switch len(there) {
	case 0:
		fmt.Fprintf(errOut, "kube-proxy: note: the folder has no Node; answering for an unknown node %s\n", name)
	case 1:
		fmt.Fprintf(errOut, "kube-proxy: note: answering for node %s, the only one in the folder\n", there[0])
		return there[0]
	default:
		fmt.Fprintf(errOut, "kube-proxy: note: the folder has no Node %s, only %s; choose one with "+
			"--hostname-override\n", name, strings.Join(there, ", "))
	}
	return name
}

// filled returns a store with these objects only.
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

// desired is the table of all services in the store, the keys that more than one of them claims,
// and which addresses are not served.
func desired(store *cluster.Store, budget *engine.Budget) (*lb.Table, []lb.Conflict, []string) {
	table := &lb.Table{Node: policy.ResolveNode(store.Facts(), budget.Settings(cluster.Name{}))}
	names := store.Names()
	for _, name := range names {
		budget.Weigh(store.View(name))
	}
	slices.SortFunc(names, cluster.Name.Compare)
	var refused []string
	for _, name := range names {
		v, s := store.View(name), budget.Settings(name)
		for _, r := range policy.Refused(v, s) {
			refused = append(refused, fmt.Sprintf("Service %s: not served: %s", name, r))
		}
		table.Replace(lb.Owner{Name: name.String(), Created: v.Service.Created}, policy.Resolve(v, s))
	}
	var conflicts []lb.Conflict
	for f := range table.All() {
		conflicts = append(conflicts, table.Conflicts(f.Key)...)
	}
	slices.SortFunc(conflicts, func(a, b lb.Conflict) int {
		return cmp.Or(a.Key.Compare(b.Key), a.Loser.Compare(b.Loser))
	})
	return table, conflicts, refused
}
