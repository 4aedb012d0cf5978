package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"kube-proxy/cli/preflight"
	"kube-proxy/cluster"
	"kube-proxy/config/nodecheck"
	"kube-proxy/debug/inspect"
	"kube-proxy/lb"
	"kube-proxy/status"
)

// nodeProblemsAge is how old an answer about the node may be: it reads links, sysctls and chains.
const nodeProblemsAge = 30 * time.Second

// nodeProblems holds the last look at the node.
type nodeProblems struct {
	mu    sync.Mutex
	found []inspect.Finding
	at    time.Time
	next  int // of the Services, the first one whose packets the next look follows
	// inTheWay has what the last look at each Service found of rules of others.
	inTheWay map[cluster.Name]inspect.Finding
}

// nodeProblems returns problems of the node, for the status and its metric (CF-68).
func (p *proxy) nodeProblems() []inspect.Finding {
	n := &p.nodeFindings
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.inTheWay == nil {
		n.inTheWay = map[cluster.Name]inspect.Finding{}
	}
	if n.at.IsZero() || time.Since(n.at) > nodeProblemsAge {
		n.found, n.at = append(p.lookAtNode(), p.lookAtServices(n)...), time.Now()
	}
	return n.found
}

func (p *proxy) lookAtNode() (all []inspect.Finding) {
	add := func(v inspect.Severity, about, text, next string) {
		all = append(all, inspect.Finding{Severity: v, About: about, Text: text, Next: next})
	}
	if c := p.choice; len(c.Steps) > 0 {
		add(inspect.Warning, "mode-fallback", "mode "+c.Mode.Name+" serves in place of "+c.Configured+": "+p.reason(),
			"kube-proxy check --problems")
	}
	if p.snapshots.serving.Load() == nil {
		for _, f := range nodecheck.Check(p.store.Facts(), p.setup()) {
			// CF-64 is the default. A folder of manifests needs no Node.
			if f.Row != "CF-64" && (f.Row != "PN-71" || p.config().Manifests == "") {
				add(inspect.Warning, nodeReasons[f.Row], f.Text, "kube-proxy check --problems")
			}
		}
	}
	for _, f := range preflight.Glance(context.Background(), p.preflightSetup(), nil) {
		severity := inspect.Severity(f.Severity) // the words are the same
		text := f.Seen
		if f.About != "" {
			text = f.About + ": " + text
		}
		next := "kube-proxy check --problems"
		if severity == inspect.Info {
			text, next = text+"; trace shows whether a rule accepts a packet", "kube-proxy trace CLIENT SERVICE"
		}
		add(severity, f.ID, text, next)
	}
	return all
}

// The limits of a look at the rules of other programs.
const (
	followed     = 3 // Services
	followedTime = 50 * time.Millisecond
	maxInTheWay  = 20 // Services that are reported
)

// lookAtServices follows packets to a few Services whose objects are in order, to others at each
// look. It reports the Services whose packets rules of other programs stopped, or led elsewhere, at
// the last look.
func (p *proxy) lookAtServices(n *nodeProblems) []inspect.Finding {
	if p.inspector == nil {
		return nil
	}
	names, begun := p.inspector.Names(), time.Now()
	for i := 0; i < min(followed, len(names)) && time.Since(begun) <= followedTime; i++ {
		name := names[n.next%len(names)]
		n.next++
		f, in, err := p.lookAtService(name.String())
		if errors.Is(err, context.DeadlineExceeded) {
			continue // what the last look found may still be so
		}
		delete(n.inTheWay, name)
		if in && len(n.inTheWay) < maxInTheWay {
			n.inTheWay[name] = f
		}
	}
	maps.DeleteFunc(n.inTheWay, func(name cluster.Name, _ inspect.Finding) bool {
		_, ok := slices.BinarySearchFunc(names, name, cluster.Name.Compare)
		return !ok
	})
	var all []inspect.Finding
	for _, name := range slices.SortedFunc(maps.Keys(n.inTheWay), cluster.Name.Compare) {
		all = append(all, n.inTheWay[name])
	}
	return all
}

// lookAtService reports whether rules of other programs are in the way of packets to a Service.
func (p *proxy) lookAtService(name string) (f inspect.Finding, in bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d, err := p.inspector.Why(ctx, name)
	if err != nil {
		return f, false, err
	}
	at := slices.IndexFunc(d.Paths, func(p inspect.Path) bool { return p.Rule })
	if at < 0 {
		return f, false, ctx.Err()
	}
	path := d.Paths[at]
	return inspect.Finding{Severity: inspect.Warning, About: inspect.OtherRules, Next: path.Trace,
		Text: name + ", for " + path.From + ": " + path.Lead[0]}, true, nil
}

// nodeReasons are the reasons of the metric, by the row of a finding.
var nodeReasons = map[string]string{"PN-71": "no-node", "PR-06": "node-deleted", "PR-03": "node-without-address",
	"PR-02": "address-family", "CF-63": "address-family", "CF-65": "node-port-addresses", "CF-66": "no-pod-network",
	"CF-67": "pod-network"}

// preflightSetup describes this proxy.
func (p *proxy) preflightSetup() *preflight.Setup {
	cfg := p.config()
	s := &preflight.Setup{Running: &p.choice.Mode, PodCIDRs: cfg.ClusterCIDRs, PodInterface: cfg.DetectLocal.Interface}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		for _, served := range p.families {
			if served.name == f {
				s.Families = append(s.Families, f)
			}
		}
	}
	return s
}

// countNodeProblems counts them for the metric.
func (p *proxy) countNodeProblems() map[status.NodeProblem]int {
	n := map[status.NodeProblem]int{}
	for _, f := range p.nodeProblems() {
		n[status.NodeProblem{Reason: f.About, Severity: string(f.Severity)}]++
	}
	return n
}
