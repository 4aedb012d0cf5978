package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/conntrack"
	"kube-proxy/engine"
	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/logging"
	"kube-proxy/plane/nftables"
	"kube-proxy/policy"
	"kube-proxy/source/convert"
	"kube-proxy/source/kube"
	"kube-proxy/source/manifests"
)

// source follows Services, EndpointSlices, the Node and ServiceCIDRs somewhere.
type source struct {
	run func(ctx context.Context, sink func(cluster.Event)) error
	// factsWait is how much later than the Services and EndpointSlices the Node and the ServiceCIDRs may come.
	factsWait time.Duration
}

// run is the process after its configuration is known. It returns nil when ctx ends.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	log.Info("kube-proxy starts", "version", compatible, "mode", cfg.Mode, "node", cfg.NodeName, "pid", os.Getpid(),
		"go", runtime.Version(), "GOMAXPROCS", runtime.GOMAXPROCS(0))
	for _, w := range cfg.Warnings {
		log.Warn(w)
	}
	store := cluster.NewStore(cfg.NodeName)
	src, srcErr := newSource(cfg, store, log)
	families, err := newFamilies(cfg, store, log)
	if err := errors.Join(srcErr, err); err != nil {
		return err
	}
	err = serve(ctx, store, src, families, newTurn(log), log)
	for _, f := range families {
		err = errors.Join(err, f.plane.Close())
	}
	return err
}

// serve has everything run until ctx ends, and then returns nil, or until the source fails. Until it is this
// process's turn, only the source runs: then what it has listed is written at once.
func serve(ctx context.Context, store *cluster.Store, src source, families []*family, turn *turn, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	running.Go(func() {
		if turn.wait(ctx) != nil {
			return
		}
		defer turn.close()
		runFamilies(ctx, families)
	})
	var seen lists
	waive := func() { waiveFacts(store, families, log) }
	var failed error
	running.Go(func() {
		failed = src.run(ctx, func(ev cluster.Event) {
			switch complete := seen.take(ev); {
			case complete && src.factsWait == 0:
				waive()
			case complete:
				running.Go(func() { sleep(ctx, src.factsWait, waive) })
			}
			fold(store, families, ev)
		})
		cancel(failed)
	})
	<-ctx.Done()
	log.Info("stopping: the rules stay in force", "because", context.Cause(ctx))
	running.Wait()
	return failed
}

func runFamilies(ctx context.Context, families []*family) {
	var running sync.WaitGroup
	for _, f := range families {
		running.Go(func() { f.run(ctx) })
	}
	running.Wait()
}

// fold takes an event in and tells the engines. They are also told of events that change nothing: an empty
// list may be the one that they wait for.
func fold(store *cluster.Store, families []*family, ev cluster.Event) {
	dirty := store.Fold(ev)
	for _, f := range families {
		f.engine.Mark(dirty)
	}
}

// lists remembers which of the lists without which nothing is served have come.
type lists struct {
	mu               sync.Mutex
	services, slices bool
}

// take reports whether the event makes the lists complete, which happens once.
func (l *lists) take(ev cluster.Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.services && l.slices
	switch ev.(type) {
	case cluster.ServicesListed:
		l.services = true
	case cluster.SlicesListed:
		l.slices = true
	}
	return !before && l.services && l.slices
}

// sleep calls f after a while, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration, f func()) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
		f()
	}
}

// waiveFacts ends the wait for the Node and the ServiceCIDRs when they do not come, for example for want of
// permission: Services are served without.
func waiveFacts(store *cluster.Store, families []*family, log *slog.Logger) {
	if !store.WaitForFacts(false) {
		return
	}
	if store.Facts().Node == nil {
		log.Warn("this node's Node object is not known: NodePorts on its primary address do not answer, and topology hints do not count. "+
			"Is --hostname-override right, and is there a Node of this name that the proxy may read?", "node", store.Facts().NodeName)
	}
	for _, f := range families {
		f.engine.Mark(cluster.Dirty{})
	}
}

// apiFactsWait is how long the first write waits for the Node and the ServiceCIDRs of an API server, once
// Services and EndpointSlices are listed (PR-03).
const apiFactsWait = 10 * time.Second

func newSource(cfg *config.Config, store *cluster.Store, log *slog.Logger) (source, error) {
	problem := func(p convert.Problem) { log.Warn(p.String()) }
	if cfg.Manifests != "" {
		s, err := manifests.New(manifests.Config{Dir: cfg.Manifests, Log: log, OnProblem: problem})
		if err != nil {
			return source{}, err
		}
		return source{run: s.Run}, nil // it lists all at once
	}
	store.WaitForFacts(true)
	s, err := kube.New(kube.Config{
		Kubeconfig: cfg.API.Kubeconfig, Master: cfg.API.Master, NodeName: cfg.NodeName,
		Log: log, OnProblem: problem, QPS: cfg.API.QPS, Burst: cfg.API.Burst, UserAgent: "kube-proxy/" + compatible,
	})
	if err != nil {
		return source{}, err
	}
	return source{s.Run, apiFactsWait}, nil
}

// family is all that serves one IP family.
type family struct {
	engine    *engine.Engine
	plane     *nftables.Plane
	conntrack *conntrack.Cleaner // nil where the kernel has no conntrack table to read
}

// newFamilies makes what serves IPv4, and what serves IPv6 where this machine has it (PR-02). A family that
// cannot be served does not keep the other from it (G6), as long as there is one.
func newFamilies(cfg *config.Config, store *cluster.Store, log *slog.Logger) ([]*family, error) {
	// What has a clear answer is asked first; whatever else may be wrong, the plane says.
	if err := kernel.NFTables(); errors.Is(err, fs.ErrPermission) || errors.Is(err, kernel.ErrUnsupported) {
		return nil, fmt.Errorf("mode %s: %w", cfg.Mode, err)
	}
	fams := []lb.Family{lb.IPv4}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil {
		fams = append(fams, lb.IPv6)
	} else {
		log.Info("this machine has no IPv6: serving IPv4 only")
	}
	if cfg.BindAddress.Is6() && !cfg.BindAddress.IsUnspecified() && len(fams) == 2 {
		fams[0], fams[1] = fams[1], fams[0]
	}
	var families []*family
	for i, fam := range fams {
		f, err := newFamily(cfg, store, fam, log)
		switch {
		case err == nil:
			families = append(families, f)
		case i == 0:
			return nil, fmt.Errorf("no support for the primary IP family %s: %w", fam, err)
		default:
			log.Error("the secondary IP family is not served", "family", fam, "err", err)
		}
	}
	return families, nil
}

func newFamily(cfg *config.Config, store *cluster.Store, fam lb.Family, log *slog.Logger) (*family, error) {
	labelled := log.With("family", fam.String()) // the engine adds the label itself
	p, err := nftables.New(nftables.Config{Family: fam, MasqueradeBit: &cfg.NFTables.MasqueradeBit})
	if err != nil {
		return nil, err
	}
	f := &family{plane: p}
	var observers []engine.Observer
	f.conntrack, err = conntrack.New(conntrack.Config{Family: fam, Log: labelled})
	if err != nil {
		labelled.Warn("stale UDP flows are not cleaned up", "err", err)
	} else {
		observers = append(observers, f.conntrack)
	}
	f.engine = engine.New(engine.Config{
		Family: fam, Plane: p, Store: store, Settings: settings(cfg), Observers: observers,
		MinSyncPeriod: cfg.NFTables.MinSyncPeriod, AuditPeriod: cfg.NFTables.SyncPeriod, Log: log,
		Written: func(w engine.Write) {
			if w.Err == nil {
				labelled.Log(context.Background(), logging.LevelWrite, "wrote", "verb", w.Verb, "changes", w.Changes, "took", w.Took)
			}
		},
	})
	return f, nil
}

func (f *family) run(ctx context.Context) {
	var running sync.WaitGroup
	if f.conntrack != nil {
		running.Go(func() { f.conntrack.Run(ctx) })
	}
	f.engine.Run(ctx)
	running.Wait()
}

// settings are the parts of the configuration that decide about rows.
func settings(cfg *config.Config) policy.Settings {
	return policy.Settings{
		MasqueradeAll: cfg.MasqueradeAll,
		DetectLocal:   policy.LocalMode(cfg.DetectLocal.Mode),
		ClusterCIDRs:  cfg.ClusterCIDRs,
		PodInterface:  cfg.DetectLocal.Interface,
		NodePortAddrs: policy.NodePortAddrs{
			Primary: cfg.NodePorts.Primary, Prefixes: cfg.NodePorts.Prefixes, NodeIP: cfg.BindAddress,
		},
	}
}
