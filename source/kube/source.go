package kube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"kube-proxy/cluster"
	"kube-proxy/source/convert"
)

// Source follows one API server. Make one with [New].
type Source struct {
	log       *slog.Logger
	reporter  *convert.Reporter
	outage    *outage
	resources []*resource
	dialer    dialer
	codec     runtime.ParameterCodec
	// reading is the leader's newest; nil before the first.
	reading atomic.Pointer[reading]
	// noStreaming: the server does not send lists as streams.
	noStreaming atomic.Bool
}

// firstRetryOptional is how long an absent or forbidden optional API is left alone the first time,
// in which the API server may just be starting; each further time is twice as long, up to
// maxRetryOptional.
const firstRetryOptional, maxRetryOptional = 5 * time.Second, 10 * time.Minute

// New returns a Source for the API server that cfg names. It reads files but does not connect.
func New(cfg Config) (*Source, error) {
	if cfg.NodeName == "" {
		return nil, errors.New("kube: the name of this node is not known")
	}
	log := cmp.Or(cfg.Log, slog.Default())
	config, err := cfg.RESTConfig()
	if err != nil {
		return nil, err
	}
	s := &Source{
		log:       log,
		reporter:  convert.NewReporter(cfg.OnProblem),
		outage:    newOutage(log, config.Host),
		resources: []*resource{services(), endpointSlices(), node(cfg.NodeName), serviceCIDRs()},
		codec:     runtime.NewParameterCodec(newScheme()),
	}
	s.dialer.base, config.Dial = config.Dial, s.dialer.dial
	if err := s.connectTo(config); err != nil {
		return nil, err
	}
	if _, _, ignored := cfg.content(); len(ignored) > 0 {
		log.Warn("Ignoring content types that kube-proxy cannot read", "ignored", ignored, "accepted",
			config.AcceptContentTypes)
	}
	from := "kubeconfig " + cfg.Kubeconfig
	switch {
	case cfg.Master != "":
		from = "--master"
	case cfg.Kubeconfig == "":
		from = "the service account of this pod"
	}
	log.Info("Watching the API server", "server", config.Host, "from", from, "node", cfg.NodeName)
	return s, nil
}

// Connected reports whether the API server is followed: nothing that is listed and watched failed
// last. It is so before the first attempt too. It may be called from any goroutine.
func (s *Source) Connected() bool { return s.outage.connected() }

// connectTo makes a client for each resource; they share connections.
func (s *Source) connectTo(config *rest.Config) error {
	versions := make([]schema.GroupVersion, len(s.resources))
	for i, r := range s.resources {
		versions[i] = r.version
	}
	clients, err := Clients(config, versions...)
	if err != nil {
		return err
	}
	for i, r := range s.resources {
		r.client, r.doubts = clients[i], make(chan struct{}, 1)
	}
	return nil
}

// Run sends events to sink until ctx ends, and then returns nil. Sink is called from several
// goroutines, but not after Run. All errors are logged and retried: an API server that cannot be
// reached is no reason to stop. Run does not wait for Reflectors, which may sleep for seconds
// before they look at ctx.
func (s *Source) Run(ctx context.Context, sink func(cluster.Event)) error {
	ctx = klog.NewContext(ctx, clientLog(s.log))
	out := outlet{sink: sink}
	s.dialer.send = out.send
	for _, r := range s.resources {
		go s.follow(ctx, r, out.send)
	}
	<-ctx.Done()
	out.close()
	return nil
}

// outlet passes events on until it is closed.
type outlet struct {
	mu     sync.RWMutex
	closed bool
	sink   func(cluster.Event)
}

func (o *outlet) send(ev cluster.Event) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if !o.closed {
		o.sink(ev)
	}
}

// close waits for events that are on their way; there will be no others.
func (o *outlet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// backoff waits 200 to 400 ms after a first failure and doubles up to 30 to 60 s, as client-go's
// own does. So the nodes of a large cluster come back spread over about the length of the outage
// (docs/scale.md).
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 30 * time.Second}
}

// follow follows one resource until ctx ends.
func (s *Source) follow(ctx context.Context, r *resource, sink func(cluster.Event)) {
	retry, reported := firstRetryOptional, false
	for ctx.Err() == nil {
		attempt, giveUp := context.WithCancelCause(ctx)
		lw := &listWatch{Source: s, resource: r, giveUp: giveUp}
		kept := &store{resource: r, sink: sink, reporter: s.reporter}
		logger := klog.FromContext(ctx)
		reflector := cache.NewReflectorWithOptions(
			&cache.ListWatch{ListWithContextFunc: lw.list, WatchFuncWithContext: lw.watch}, &record{}, kept,
			cache.ReflectorOptions{Name: r.plural, TypeDescription: r.kind, Backoff: backoff(), Logger: &logger})
		reflector.RunWithContext(attempt)
		giveUp(nil)
		if ctx.Err() != nil {
			return
		}
		// Only the optional resource, ServiceCIDRs, is given up.
		if kept.listed {
			retry, reported = firstRetryOptional, false
		}
		sink(cluster.CIDRsAbsent{})
		if !reported {
			s.log.Info("Cannot list a resource, its last known objects stay in force", "resource", r.plural, "err",
				context.Cause(attempt))
			reported = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, maxRetryOptional)
	}
}

// store is a Reflector's store that keeps nothing: each call becomes an event.
type store struct {
	resource *resource
	sink     func(cluster.Event)
	reporter *convert.Reporter
	listed   bool // there was a complete list
}

func (s *store) Add(obj any) error { return s.Update(obj) }
func (s *store) Resync() error     { return nil }

// Update also takes objects that are not for this proxy: the server has already filtered by label,
// but a slice may have lost its Service's name.
func (s *store) Update(obj any) error {
	if rec := obj.(*record); rec.value != nil {
		s.sink(convert.SetEvent(rec.value))
	} else {
		s.sink(convert.GoneEvent(s.resource.kind, rec.name))
	}
	return nil
}

// Delete takes an object that is gone.
func (s *store) Delete(obj any) error {
	rec := obj.(*record)
	s.reporter.Report(s.resource.kind, rec.name, nil)
	s.sink(convert.GoneEvent(s.resource.kind, rec.name))
	return nil
}

// Replace takes a complete list, as listings: none if it is empty.
func (s *store) Replace(list []any, _ string) error {
	s.listed = true
	var all listing
	for _, obj := range list {
		l := obj.(*record).value.(*listing)
		all.values = append(all.values, l.values...)
		all.faulty = append(all.faulty, l.faulty...)
		all.later = append(all.later, l.later...)
	}
	s.reporter.Keep(s.resource.kind, all.faulty)
	s.sink(s.resource.listed(all.values))
	for _, ev := range all.later {
		if ev.Type == watch.Deleted {
			_ = s.Delete(ev.Object)
		} else {
			_ = s.Update(ev.Object)
		}
	}
	return nil
}

var (
	_ cache.ReflectorStore = (*store)(nil)
	_ metav1.Object        = (*record)(nil)
)
