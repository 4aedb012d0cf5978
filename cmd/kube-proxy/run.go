package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/logging"
	"kube-proxy/mode"
)

// proxy is the process after its configuration is known.
type proxy struct {
	args    []string // the command line, by which the configuration can be read again
	present atomic.Pointer[config.Config]
	logs    *logging.Log
	log     *slog.Logger

	store    *cluster.Store
	choice   mode.Choice
	families []*family
	begun    *firsts
	turn     *turn
}

func newProxy(args []string, cfg *config.Config, logs *logging.Log, log *slog.Logger) *proxy {
	p := &proxy{args: args, logs: logs, log: log, store: cluster.NewStore(cfg.NodeName), turn: newTurn(log)}
	p.present.Store(cfg)
	return p
}

// config returns the configuration as it is now; a reload replaces it.
func (p *proxy) config() *config.Config { return p.present.Load() }

// run is the process after its configuration is known. It returns nil when ctx ends.
func (p *proxy) run(ctx context.Context) error {
	cfg := p.config()
	p.log.Info("kube-proxy starts", "version", compatible, "mode", cfg.Mode, "node", cfg.NodeName, "pid", os.Getpid(),
		"go", runtime.Version(), "GOMAXPROCS", runtime.GOMAXPROCS(0), "GOGC", os.Getenv("GOGC"), "GOTRACEBACK", os.Getenv("GOTRACEBACK"))
	for _, w := range cfg.Warnings {
		p.log.Warn(w)
	}
	src, srcErr := p.newSource()
	if err := errors.Join(srcErr, p.prepare(ctx)); err != nil {
		return err
	}
	return errors.Join(p.serve(ctx, src), p.closePlanes())
}

// prepare chooses the mode and makes what serves it. It changes nothing of the kernel's.
func (p *proxy) prepare(ctx context.Context) error {
	fams := ipFamilies(p.config(), p.log)
	if err := p.choose(ctx, fams[0]); err != nil {
		return err
	}
	if err := p.newFamilies(fams); err != nil {
		return err
	}
	p.begun = newFirsts(p.families)
	return nil
}

// serve has everything run until ctx ends, and then returns nil, or until something fails that the process cannot
// live without. Until it is this process's turn, only the source runs: then what it has listed is written at once.
func (p *proxy) serve(ctx context.Context, src source) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var running sync.WaitGroup
	running.Go(func() {
		if p.turn.wait(ctx) != nil {
			return
		}
		defer p.turn.close()
		p.runFamilies(ctx)
	})
	running.Go(func() {
		if err := p.follow(ctx, src); err != nil {
			fail(fatal{err})
		}
	})
	<-ctx.Done()
	cause := context.Cause(ctx)
	p.log.Info("stopping: the rules stay in force", "because", cause)
	running.Wait()
	if f := (fatal{}); errors.As(cause, &f) {
		return f.error
	}
	return nil
}

// fatal is a cause to stop that the process ends with.
type fatal struct{ error }

func (p *proxy) runFamilies(ctx context.Context) {
	var running sync.WaitGroup
	for _, f := range p.families {
		running.Go(func() { f.run(ctx) })
	}
	running.Wait()
}
