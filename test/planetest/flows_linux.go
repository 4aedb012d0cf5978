package planetest

import (
	"context"
	"fmt"

	"kube-proxy/conntrack"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/scenario"
)

// cleaner forgets stale UDP flows beside a plane, as in the process of the proxy.
type cleaner struct {
	*conntrack.Cleaner
	stop func() // ends it, and returns when it has ended
}

// newCleaner starts one in the network namespace of the calling thread.
func newCleaner(f lb.Family, p Plane) (cleaner, error) {
	cfg := conntrack.Config{Family: f}
	if a, ok := p.(mode.Answerer); ok {
		cfg.Proxied = a.Answers
	}
	c, err := conntrack.New(cfg)
	if err != nil {
		return cleaner{}, fmt.Errorf("forget stale flows: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	return cleaner{c, func() { cancel(); <-ended }}, nil
}

// applied reports a step that is in force; the first one of a plane has all frontends.
func (c cleaner) applied(step scenario.Step, first bool) {
	changes := step.Changes
	if first {
		changes = nil
		for _, f := range step.Table.Sorted() {
			changes = append(changes, lb.Change{Key: f.Key, New: f})
		}
	}
	c.NodeApplied(step.Table.Node)
	c.Applied(changes)
}
