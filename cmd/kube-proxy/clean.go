package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/config"
	"kube-proxy/event"
	"kube-proxy/failover/control"
	"kube-proxy/internal/pause"
	"kube-proxy/internal/system"
	"kube-proxy/internal/wiring"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/cleanup"
)

// ipvsDrain is how long connections may continue through the virtual servers left by mode ipvs: the
// default time for the end of a pod.
const ipvsDrain = 30 * time.Second

// Objects that could not be removed are tried again after a while, then after ever longer ones.
const cleanAgain, cleanAgainMost = 5 * time.Second, 5 * time.Minute

// cleanOthers removes the objects of a proxy in another mode, once the rules of this one are all in
// force (PR-08). It returns when all are removed.
func (p *proxy) cleanOthers(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.begun.all:
	}
	what := p.config().Removal()
	what.Drain = ipvsDrain
	for _, f := range p.families {
		what.Families = append(what.Families, f.name)
	}
	what.Served = p.someUDP
	var reported []string
	for wait := cleanAgain; ctx.Err() == nil; wait = min(2*wait, cleanAgainMost) {
		report, err := cleanup.Others(ctx, p.modes, p.choice.Mode, what)
		if p.failoverSettings().Mode == control.Off { // else the rules of failover are this process's
			watches, e := cleanup.Watches(ctx, what)
			report.Removed, err = append(report.Removed, watches.Removed...), errors.Join(err, e)
		}
		if wait == cleanAgain && ctx.Err() == nil { // else the next process waits for what is left
			p.othersGone()
		}
		report.Left = slices.DeleteFunc(report.Left, func(s string) bool { return slices.Contains(reported, s) })
		reported = append(reported, report.Left...)
		reportOfCleanup(p.log, report)
		p.noteOverridden(err)
		if err == nil || ctx.Err() != nil {
			return
		}
		if text := err.Error(); !slices.Contains(reported, text) {
			reported = append(reported, text)
			p.log.Error("Failed to remove all rules of another mode, retrying; they may misdirect new connections",
				"err", err)
		}
		pause.For(ctx, wait)
	}
}

// someUDP returns a few UDP frontends of cluster IPs that have endpoints, the same at each call.
func (p *proxy) someUDP(fam lb.Family) (all []netip.AddrPort) {
	const enough = 8
	for _, f := range p.families {
		if f.name != fam {
			continue
		}
		f.engine.Query(func(t *lb.Table) {
			for front := range t.All() {
				if front.Key.Proto == lb.UDP && front.Kind == lb.ClusterIP && front.Last().Do == lb.Balance {
					all = append(all, netip.AddrPortFrom(front.Key.Addr, front.Key.Port))
				}
			}
		})
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all[:min(len(all), enough)]
}

// noteOverridden keeps whether objects of another mode override the rules (EB-31).
func (p *proxy) noteOverridden(err error) {
	if !errors.Is(err, mode.ErrOverrides) {
		p.overridden.Store(nil)
		return
	}
	why := err.Error()
	if p.overridden.Swap(&why) == nil {
		p.publish(event.RulesOverridden(p.config().NodeName, err))
	}
}

// othersGone has the planes begin the work that waited for the removal of other modes' rules.
func (p *proxy) othersGone() {
	for _, f := range p.families {
		if s, ok := f.plane.(mode.Successor); ok {
			if err := s.OthersGone(); err != nil {
				p.log.Error("Failed to begin the work that waited for the removal of other rules; an audit retries",
					"family", f.name, "err", err)
			}
		}
	}
}

// othersEnd is how long --cleanup waits for another proxy to end.
const othersEnd = 10 * time.Second

// removeRules removes rules for --cleanup and similar flags (PR-08, DP-15). It takes the writer
// lock, so that no other process writes meanwhile.
func removeRules(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	waiting, cancel := context.WithTimeoutCause(ctx, othersEnd,
		errors.New("another kube-proxy runs in this network namespace and would write them again: stop it first"))
	defer cancel()
	writer := newWriterLock(log)
	if writer.wait(waiting) != nil {
		return fmt.Errorf("no rule was removed: %w", context.Cause(waiting))
	}
	defer writer.close()
	modes := slices.DeleteFunc(all.Modes(), func(m mode.Mode) bool {
		return !slices.Contains(cfg.Cleanup, m.Name)
	})
	report, err := cleanup.Run(ctx, modes, cfg.Removal())
	reportOfCleanup(log, report)
	if err != nil {
		return fmt.Errorf("encountered an error while tearing down rules: %w", err)
	}
	if len(report.Removed) == 0 {
		log.Info("No kube-proxy rules found")
	}
	return nil
}

func reportOfCleanup(log *slog.Logger, r mode.Report) {
	for _, s := range r.Removed {
		log.Info("Removed", "what", s)
	}
	for _, s := range r.Left {
		log.Warn("Left unchanged", "what", s)
	}
}

// initOnly is --init-only (PR-09).
func (p *proxy) initOnly(ctx context.Context) error {
	if err := p.choose(ctx, wiring.Families(p.config().Config, p.log)[0]); err != nil {
		return err
	}
	if err := p.setHost(system.Host.InitOnly); err != nil {
		return err
	}
	p.removeOverrides(ctx)
	p.log.Info("System initialized and --init-only specified")
	return nil
}

// removeOverrides removes the objects of other modes that override all rules. The proxy itself may
// lack the rights to do so, and is not ready if any are left.
func (p *proxy) removeOverrides(ctx context.Context) {
	what := p.config().Removal()
	what.Families = []lb.Family{lb.IPv4, lb.IPv6}
	for _, m := range p.modes {
		if !m.Overrides || m.Name == p.choice.Mode.Name || m.Remove == nil {
			continue
		}
		report, err := m.Remove(ctx, what)
		reportOfCleanup(p.log, report)
		if err != nil {
			p.log.Error("Failed to remove what another mode left", "mode", m.Name, "err", err)
		}
	}
}
