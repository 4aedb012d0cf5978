package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/config/nodecheck"
	"kube-proxy/event"
)

// waiveFacts ends the wait for the Node and the ServiceCIDRs when they do not arrive, for example
// for lack of permission: Services are served without them.
func (p *proxy) waiveFacts() {
	p.folding.Lock()
	missing := p.store.WaitForFacts(false)
	if missing {
		p.mark(cluster.Dirty{})
	}
	p.folding.Unlock()
	if missing {
		p.factsChanged()
	}
}

// factsChanged is called when something of the node or the service network has changed.
func (p *proxy) factsChanged() {
	p.servers.services.AddressesChanged()
	select {
	case p.facts <- struct{}{}:
	default: // a look is due anyway
	}
}

// podCIDRsWait is how long the Node may be without pod CIDRs in the mode that needs them (PR-05).
const podCIDRsWait = 5 * time.Minute

// factsPoll is the time between two checks whether the facts for the start have arrived.
const factsPoll = 100 * time.Millisecond

// watchNode compares the configuration with the node when its facts arrive, and after each change
// (CF-63 to CF-66). It calls fail if the process cannot continue.
func (p *proxy) watchNode(ctx context.Context, podCIDRsWait time.Duration, fail func(error)) {
	podCIDRs := time.After(podCIDRsWait)
	var reported []string
	var again <-chan time.Time
	for begun := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-podCIDRs:
			if p.store.PodCIDRsMissing() {
				fail(nodecheck.NoPodCIDRs(p.store.Facts(), podCIDRsWait, p.config().Name))
				return
			}
		case <-p.facts:
			again = time.After(0)
		case <-again:
			if !p.store.Synced() || p.snapshots.serving.Load() != nil { // a snapshot's node is no reason to fail
				again = time.After(factsPoll)
				continue
			}
			findings := nodecheck.Check(p.store.Facts(), p.setup())
			var fatals []error
			before := reported
			reported = nil // a problem that returns is reported again
			for _, f := range findings {
				reported = append(reported, f.Text)
				if f.Fatal && !begun {
					fatals = append(fatals, errors.New(f.Text))
				} else if !slices.Contains(before, f.Text) {
					p.log.Warn("Configuration may be incomplete or incorrect", "reason", f.Text)
					if f.Row == "PN-71" {
						p.publish(event.NodeNotFound(p.config().NodeName))
					}
				}
			}
			if len(fatals) > 0 {
				fail(errors.Join(fatals...))
				return
			}
			begun = true
		}
	}
}

// setup returns the settings to compare.
func (p *proxy) setup() nodecheck.Setup {
	cfg := p.config()
	s := nodecheck.Setup{
		Settings: p.settings(p.families[0].name), NodePortsUnset: cfg.Resolved.NodePorts.Unset,
		Healthz: cfg.Servers.Healthz, Metrics: cfg.Servers.Metrics, Manifests: cfg.Manifests != "", Name: cfg.Name,
	}
	if of := p.choice.Mode.Networks; of != nil {
		s.Networks = of(cfg.Blocks)
	}
	if of := p.choice.Mode.Addresses; of != nil {
		s.Addresses = of(cfg.Blocks)
	}
	for _, f := range p.families {
		s.Families = append(s.Families, f.name)
	}
	return s
}
