package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/config"
	"kube-proxy/debug/changes"
	"kube-proxy/debug/inspect"
	"kube-proxy/event"
	"kube-proxy/failover/control"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/internal/system"
	"kube-proxy/internal/wiring"
	"kube-proxy/logging"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/source/kube"
)

// proxy is the process after its configuration is read.
type proxy struct {
	modes   mode.List
	args    []string // the command line, to read the configuration again
	present atomic.Pointer[wiring.Config]
	logs    *logging.Log
	log     *slog.Logger

	store    *cluster.Store
	folding  sync.Mutex // from a fold until the engines are notified
	choice   mode.Choice
	writes   selfwrites.Ledger // of the planes of all families
	changes  *changes.Ring     // from the engines of all families
	families []*family
	failover *control.Controller
	begun    *firsts
	refused  refusedServices
	// overridden is why programs of another mode decide about connections; nil if none do.
	overridden atomic.Pointer[string]
	// problems and collisions bound the messages about malformed objects, and about ports of
	// Services in use.
	problems, collisions *ratelimit.Limiter
	servers              servers
	// inspector answers the queries of the admin socket and the page.
	inspector    *inspect.Inspector
	writer       *writerLock
	snapshots    snapshots
	nodeFindings nodeProblems

	unusable  bool        // state of the configuration file at the last check; for watchConfig and its callees
	reloaded  atomic.Bool // the configuration is another than at the start
	hangups   chan os.Signal
	facts     chan struct{} // has a value when something of the node has changed
	verbosity atomic.Int64  // of the log

	// publish sends an event, if there is an API server. It never waits, and writes no log: the
	// caller has done that.
	publish func(event.Event)
	// dropped counts the events that could not be sent.
	dropped func() uint64
	// connected reports whether the source is followed.
	connected func() bool
}

func newProxy(args []string, cfg *config.Config, logs *logging.Log, log *slog.Logger) *proxy {
	p := &proxy{modes: all.Modes(), args: args, logs: logs, log: log, store: cluster.NewStore(cfg.NodeName),
		publish: func(event.Event) {}, dropped: func() uint64 { return 0 }, connected: func() bool {
			return true
		}}
	p.present.Store(&wiring.Config{Config: cfg})
	p.changes = changes.New()
	p.problems = ratelimit.New(log, "Malformed object")
	p.collisions = ratelimit.New(log, "Service port is in use on this node")
	p.facts, p.hangups = make(chan struct{}, 1), make(chan os.Signal, 1)
	p.verbosity.Store(int64(cfg.Logging.Verbosity))
	return p
}

// config returns the configuration as it is now; a reload replaces it.
func (p *proxy) config() *wiring.Config { return p.present.Load() }

// run runs the process after its configuration is read. It returns nil when ctx ends.
func (p *proxy) run(ctx context.Context) error {
	// Before another program can find this process: without a handler the signal would end it.
	signal.Notify(p.hangups, syscall.SIGHUP)
	defer signal.Stop(p.hangups)
	cfg := p.config()
	p.log.Info("Starting kube-proxy", "version", cfg.Version, "mode", cfg.Mode, "node", cfg.NodeName, "pid",
		os.Getpid(),
		"go", runtime.Version(), "GOMAXPROCS", runtime.GOMAXPROCS(0), "GOGC", os.Getenv("GOGC"), "GOTRACEBACK",
		os.Getenv("GOTRACEBACK"), "machine", cfg.MachineID, "boot", cfg.BootID)
	warn(p.log, cfg.Warnings)
	src, srcErr := p.newSource()
	if srcErr == nil {
		p.connected = src.connected
	}
	if srcErr == nil && cfg.Manifests == "" {
		publisher, err := kube.NewPublisher(p.kubeConfig())
		if err != nil {
			return err
		}
		p.publish = publisher.Publish
		p.dropped = publisher.Dropped
		// It ends after all else, so that events about the end are sent too.
		var publishing sync.WaitGroup
		defer publishing.Wait()
		until, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		publishing.Go(func() { publisher.Run(until) })
	}
	p.publish(event.Starting(cfg.NodeName))
	p.openSnapshot(ctx)
	fams := wiring.Families(cfg.Config, p.log)
	if err := errors.Join(srcErr, p.choose(ctx, fams[0])); err != nil {
		return err
	}
	if err := p.setHost(system.Host.Start); err != nil {
		return err
	}
	p.newMetrics()
	if err := p.newFamilies(fams); err != nil {
		return err
	}
	p.newServers()
	p.writer = newWriterLock(p.log)
	return errors.Join(p.serve(ctx, src), p.closePlanes())
}

// serve runs everything until ctx ends, and then returns nil, or until a fatal failure. Until this
// process has the writer lock, only the source and the health server run: then the listed objects
// are written at once.
func (p *proxy) serve(ctx context.Context, src source) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	failed := &failures{end: end}
	var running sync.WaitGroup
	followOwn := p.openOwn(ctx)
	running.Go(func() { followOwn(ctx) })
	running.Go(func() { p.perform(ctx, failed.add) })
	running.Go(func() { p.watchConfig(ctx, failed.add) })
	running.Go(func() {
		if err := p.follow(ctx, src); err != nil {
			failed.add(err)
		}
	})
	running.Go(func() { p.watchNode(ctx, podCIDRsWait, failed.add) })
	written := p.keepSnapshots(ctx)
	<-ctx.Done()
	p.log.Info("Stopping; the rules stay in force", "reason", context.Cause(ctx))
	running.Wait()
	select {
	case <-written:
	case <-time.After(snapshotEnd):
		p.log.Error("The last snapshot is not written: the disk does not answer", "waited", snapshotEnd)
	}
	return failed.err()
}

// failures are fatal errors. The first ends the process, after a moment in which others may occur:
// if two ports are in use, both are reported at once.
type failures struct {
	end  func(because error)
	mu   sync.Mutex
	errs []error
}

// failuresMoment is the wait for other failures after the first.
const failuresMoment = 100 * time.Millisecond

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
	if len(f.errs) == 1 {
		time.AfterFunc(failuresMoment, func() { f.end(err) })
	}
}

// err returns all failures, each on its own line, or nil.
func (f *failures) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) == 1 {
		return f.errs[0]
	}
	return errors.Join(f.errs...)
}

// perform serves packets and requests until ctx ends. From then on the servers report that the
// process is about to end (PR-07), until the last write is done. There is no wait for load
// balancers to notice: a closed port makes them remove the node as well, and the sooner the next
// process listens there, the fewer do. For the same reason the servers are closed while open
// connections finish.
func (p *proxy) perform(ctx context.Context, fail func(error)) {
	stop := context.AfterFunc(ctx, p.servers.health.Drain)
	defer stop()
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	var answering, cleaning sync.WaitGroup
	ours := p.writer.take()
	p.listenHealth(ours)
	answering.Go(func() { p.runHealth(serving, fail) })
	if ours || p.writer.wait(ctx) == nil {
		if !ours { // the other process may have had the address
			p.listenHealth(true)
		}
		answering.Go(func() { p.runServers(serving, fail) })
		cleaning.Go(func() { p.cleanOthers(ctx) })
		p.runFamilies(ctx)
	}
	cleaning.Wait()
	end()
	answering.Wait()
	p.drain(context.WithoutCancel(ctx))
}

// drain lets connections that end at the proxy finish, within the configured time. A process that
// waits for the writer lock and the ports does not wait for that: both are released before.
func (p *proxy) drain(ctx context.Context) {
	var planes []mode.Drainer
	for _, f := range p.families {
		if d, ok := f.plane.(mode.Drainer); ok {
			d.StopAccepting()
			planes = append(planes, d)
		}
	}
	p.writer.close()
	if planes == nil {
		return
	}
	within := time.Duration(0)
	if of := p.choice.Mode.DrainTimeout; of != nil {
		within = of(p.config().Blocks)
	}
	p.log.Info("Draining connections; a second signal closes them at once", "within", within)
	ctx, end := context.WithTimeout(ctx, within)
	defer end()
	began := time.Now()
	var left atomic.Int64
	var draining sync.WaitGroup
	for _, d := range planes {
		draining.Go(func() { left.Add(int64(d.Drain(ctx))) })
	}
	draining.Wait()
	p.log.Info("Drained connections", "took", time.Since(began).Round(time.Millisecond), "cut", left.Load())
}

func (p *proxy) runFamilies(ctx context.Context) {
	var running sync.WaitGroup
	for _, f := range p.families {
		running.Go(func() { f.run(ctx) })
	}
	p.configureFailover()
	running.Go(func() { p.failover.Run(ctx) })
	running.Wait()
}
