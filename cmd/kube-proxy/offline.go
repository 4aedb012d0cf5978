package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/debug/inspect"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/source/manifests"
)

// offline answers for a folder of manifests, as a proxy with this configuration would have its objects.
func offline(cfg *config.Config, modes mode.List, errOut io.Writer) (*inspect.Inspector, error) {
	objects, problems, err := manifests.Load(os.DirFS(cfg.Manifests))
	if err != nil {
		return nil, fmt.Errorf("--manifests %s: %w", cfg.Manifests, err)
	}
	for _, p := range problems {
		fmt.Fprintf(errOut, "kube-proxy: %s\n", lb.Printable(p.String()))
	}
	m, resolved, err := offlineMode(cfg, modes)
	if err != nil {
		return nil, err
	}
	node := offlineNode(cfg.NodeName, objects, errOut)
	store := filled(node, objects)
	ic := inspect.Config{Version: cfg.Version, Mode: m, Asked: cfg.Mode, Offline: true, Store: store,
		Pods: func(_ context.Context, pod cluster.Name) (map[cluster.Name][]netip.Addr, error) {
			return manifests.Pods(os.DirFS(cfg.Manifests), pod)
		}}
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		budget := fixedBudget(m, &configured{cfg, resolved}, fam)
		table, _, _ := desired(store, budget)
		table.Family = fam
		ic.Families = append(ic.Families, inspect.Family{
			Family: fam, Query: func(f func(*lb.Table)) { f(table) }, Settings: budget.Settings,
			Trace: m.Trace(planeSettings(&configured{cfg, resolved}, fam)),
		})
	}
	return inspect.New(ic), nil
}

// offlineMode is the mode that is asked for, else what every host has.
func offlineMode(cfg *config.Config, modes mode.List) (mode.Mode, config.Resolved, error) {
	name := cfg.Mode
	if name == "" {
		name = strings.Join(modes.Names(func(m mode.Mode) bool { return m.Unasked == runtime.GOOS })[:1], "")
	}
	m, _ := modes.Find(name)
	resolved, err := cfg.For(m)
	return m, resolved, named(cfg.File, err)
}

// offlineNode is the node for which the answer is: the one that is asked for, or the only one that the folder has.
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
		fmt.Fprintf(errOut, "kube-proxy: note: the folder has no Node: what depends on one is as on a node %s that nothing is known of\n", name)
	case 1:
		fmt.Fprintf(errOut, "kube-proxy: note: answering for node %s, the only one in the folder\n", there[0])
		return there[0]
	default:
		fmt.Fprintf(errOut, "kube-proxy: note: the folder has no Node %s, but %s: --hostname-override says for which one the answer is to be\n", name, strings.Join(there, ", "))
	}
	return name
}
