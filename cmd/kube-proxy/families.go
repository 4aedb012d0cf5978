package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/conntrack"
	"kube-proxy/engine"
	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/logging"
	"kube-proxy/mode"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/nftables"
	"kube-proxy/policy"
)

// dataPlane is a plane of any mode. What else it can do, its engine finds out.
type dataPlane interface {
	engine.Plane
	Close() error
}

// family is all that serves one IP family.
type family struct {
	name      lb.Family
	engine    *engine.Engine
	plane     dataPlane
	conntrack *conntrack.Cleaner // nil where the kernel has no conntrack table to read
}

// ipFamilies are the families that this machine has (PR-02), the primary one first: that of --bind-address.
func ipFamilies(cfg *config.Config, log *slog.Logger) []lb.Family {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		log.Info("this machine has no IPv6: serving IPv4 only")
		return []lb.Family{lb.IPv4}
	}
	if cfg.BindAddress.Is6() && !cfg.BindAddress.IsUnspecified() {
		return []lb.Family{lb.IPv6, lb.IPv4}
	}
	return []lb.Family{lb.IPv4, lb.IPv6}
}

// able says why the mode cannot serve the primary family on this host, or nil.
func able(m string, cfg *config.Config, primary lb.Family) error {
	switch m {
	case mode.NFTables:
		return kernel.NFTables()
	case mode.IPTables:
		p, err := newPlane(m, cfg, primary)
		if err != nil {
			return err
		}
		return p.Close()
	default:
		return mode.ErrNotBuilt
	}
}

func newPlane(m string, cfg *config.Config, fam lb.Family) (dataPlane, error) {
	switch m {
	case mode.NFTables:
		return nftables.New(nftables.Config{Family: fam, MasqueradeBit: &cfg.NFTables.MasqueradeBit})
	case mode.IPTables:
		return iptables.New(iptablesConfig(cfg, fam))
	default:
		return nil, mode.ErrNotBuilt
	}
}

func iptablesConfig(cfg *config.Config, fam lb.Family) iptables.Config {
	t := &cfg.IPTables
	return iptables.Config{
		Family: fam, MasqueradeBit: &t.MasqueradeBit, LocalhostNodePorts: &t.LocalhostNodePorts, CanaryPeriod: t.SyncPeriod,
	}
}

// newFamilies makes what serves the families. One that cannot be served does not keep the other from it (G6),
// but for the first.
func (p *proxy) newFamilies(fams []lb.Family) error {
	for i, fam := range fams {
		f, err := p.newFamily(fam)
		switch {
		case err == nil:
			p.families = append(p.families, f)
		case i == 0:
			return fmt.Errorf("no support for the primary IP family %s: %w", fam, err)
		default:
			p.log.Error("the secondary IP family is not served", "family", fam, "err", err)
		}
	}
	return nil
}

func (p *proxy) newFamily(fam lb.Family) (*family, error) {
	labelled := p.log.With("family", fam.String()) // the engine adds the label itself
	cfg := p.config()
	plane, err := newPlane(p.choice.Mode, cfg, fam)
	if err != nil {
		return nil, err
	}
	f := &family{name: fam, plane: plane}
	var observers []engine.Observer
	f.conntrack, err = conntrack.New(conntrack.Config{Family: fam, Log: labelled})
	if err != nil {
		labelled.Warn("stale UDP flows are not cleaned up", "err", err)
	} else {
		observers = append(observers, f.conntrack)
	}
	t := tables(cfg, p.choice.Mode)
	f.engine = engine.New(engine.Config{
		Family: fam, Plane: plane, Store: p.store, Observers: observers,
		Resolve:       func(v cluster.View) []*lb.Frontend { return policy.Resolve(v, p.settings(fam)) },
		ResolveNode:   func(facts cluster.Facts) lb.Node { return policy.ResolveNode(facts, p.settings(fam)) },
		MinSyncPeriod: t.MinSyncPeriod, AuditPeriod: t.SyncPeriod, Log: p.log,
		Written: func(w engine.Write) { p.written(f, labelled, w) },
	})
	return f, nil
}

// written is told of each write of a family.
func (p *proxy) written(f *family, log *slog.Logger, w engine.Write) {
	if w.Err != nil {
		return // the engine has said it
	}
	log.Log(context.Background(), logging.LevelWrite, "wrote", "verb", w.Verb, "changes", w.Changes, "took", w.Took)
	if w.Verb == "reset" {
		p.begun.add(f.name)
	}
}

func (f *family) run(ctx context.Context) {
	var running sync.WaitGroup
	if f.conntrack != nil {
		running.Go(func() { f.conntrack.Run(ctx) })
	}
	f.engine.Run(ctx)
	running.Wait()
}

// tables are the settings that the mode has of its own.
func tables(cfg *config.Config, m string) config.Tables {
	switch m {
	case mode.NFTables:
		return cfg.NFTables
	case mode.EBPF:
		return cfg.EBPF
	default:
		return cfg.IPTables
	}
}

// settings are the parts of the present configuration that decide about rows of a family.
func (p *proxy) settings(fam lb.Family) policy.Settings {
	return settings(p.config(), p.choice.Mode, fam)
}

func settings(cfg *config.Config, m string, fam lb.Family) policy.Settings {
	return policy.Settings{
		Family:        fam,
		MasqueradeAll: tables(cfg, m).MasqueradeAll,
		DetectLocal:   policy.LocalMode(cfg.DetectLocal.Mode),
		ClusterCIDRs:  cfg.ClusterCIDRs,
		PodInterface:  cfg.DetectLocal.Interface,
		NodePortAddrs: policy.NodePortAddrs{
			Primary: cfg.NodePorts.Primary, Prefixes: cfg.NodePorts.Prefixes, NodeIP: cfg.BindAddress,
		},
	}
}

// firsts notes which families have been written as a whole, and tells when all have.
type firsts struct {
	mu   sync.Mutex
	want map[lb.Family]bool
	all  chan struct{} // closed when none is left
}

func newFirsts(families []*family) *firsts {
	f := &firsts{want: map[lb.Family]bool{}, all: make(chan struct{})}
	for _, fam := range families {
		f.want[fam.name] = true
	}
	return f
}

func (f *firsts) add(fam lb.Family) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.want) == 0 {
		return
	}
	if delete(f.want, fam); len(f.want) == 0 {
		close(f.all)
	}
}

// closePlanes ends the planes; their rules stay.
func (p *proxy) closePlanes() error {
	var err error
	for _, f := range p.families {
		err = errors.Join(err, f.plane.Close())
	}
	return err
}
