package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/event"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/policy"
	"kube-proxy/source/snapshot"
	"kube-proxy/status"
	"kube-proxy/trace"
)

const (
	// snapshotLoad bounds the wait for the disk at the start.
	snapshotLoad = 5 * time.Second
	// snapshotEnd bounds the wait for the last write.
	snapshotEnd = 2 * time.Second
)

// snapshots is the use of a snapshot (SN-01 to SN-08). Without --snapshot the zero value does
// nothing.
type snapshots struct {
	manager *snapshot.Manager
	boot    string
	// annotation is the mode of the Node's annotation, if known.
	annotation string
	// found is the snapshot to serve from; nil if none was found, or none is needed.
	found *snapshot.Snapshot
	// serving is the time of the facts in force, while they come from a snapshot.
	serving atomic.Pointer[time.Time]
	listed  atomic.Bool // by the API server
}

// openSnapshot opens a snapshot. A failure is reported, and the process continues without.
func (p *proxy) openSnapshot(ctx context.Context) {
	cfg, s := p.config(), &p.snapshots
	dir := cfg.Snapshot.Dir
	if dir == "" || cfg.Manifests != "" || !snapshot.Supported { // the configuration has warned
		return
	}
	s.boot = snapshot.Boot(cfg.BootID)
	s.manager = snapshot.NewManager(snapshot.Config{
		Save: func() (snapshot.Saved, error) {
			from := snapshot.Origin{Node: cfg.NodeName, Written: time.Now(), Boot: s.boot, Mode: s.annotation}
			return snapshot.Save(dir, from, p.store)
		},
		Current: func() bool { return s.listed.Load() && p.begun.done() && p.connected() },
		MaxAge:  cfg.Snapshot.MaxAge, Log: p.log,
	})
	type result struct {
		found *snapshot.Snapshot
		err   error
	}
	loaded := make(chan result, 1)
	go func() {
		found, err := snapshot.Load(dir, cfg.NodeName, cfg.Snapshot.MaxAge, time.Now())
		loaded <- result{found, err}
	}()
	select {
	case r := <-loaded:
		switch {
		case errors.Is(r.err, snapshot.ErrNone):
			p.log.Info("No snapshot yet", "dir", dir)
		case r.err != nil:
			p.log.Error("Snapshot rejected, starting without", "err", r.err)
		default:
			s.found, s.annotation = r.found, r.found.Mode
		}
	case <-time.After(snapshotLoad):
		p.log.Error("Snapshot rejected, starting without: the disk does not answer", "dir", dir, "waited", snapshotLoad)
	case <-ctx.Done():
	}
}

// restore loads the facts of the snapshot, unless the kernel still has the rules of newer ones.
// Rules outlive the process, but not in a mode whose connections end at the proxy, and another
// program may have removed them.
func (p *proxy) restore(ctx context.Context) {
	s := &p.snapshots
	found := s.found
	s.found = nil
	if found == nil {
		return
	}
	if s.boot != "" && found.Boot == s.boot && p.choice.Mode.DrainTimeout == nil {
		lost := p.lost(ctx, found)
		if lost == "" {
			p.log.Info("Snapshot not needed: the rules of this boot are in the kernel")
			return
		}
		p.log.Warn("The rules of this boot are not in the kernel", "reason", lost)
	}
	setGC(gcPercent)
	s.serving.Store(&found.Written)
	p.log.Warn("Serving from a snapshot until the API server has listed Services and endpoints",
		"written", found.Written, "services", found.Services())
	p.publish(event.ServingSnapshot(p.config().NodeName, found.Written, found.Services()))
	p.fold(found.Events())
	p.waiveFacts()
}

const (
	// sample is how many frontends of a family are looked for in the kernel.
	sample = 16
	// sampleTime bounds that.
	sampleTime = 5 * time.Second
)

// lost returns why the kernel does not have the rules of about the facts of the snapshot; "" if it
// has. The facts may have changed since they were written, so half of the sample may be missing.
func (p *proxy) lost(ctx context.Context, found *snapshot.Snapshot) string {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	store := cluster.NewStore(p.config().NodeName)
	store.Fold(found.Events())
	for _, f := range p.families {
		kernel, can := f.plane.(mode.Tracer)
		if !can {
			continue
		}
		asked, missing := 0, 0
		for _, name := range store.Names() {
			if asked == sample {
				break
			}
			key, ok := servedIP(policy.Resolve(store.View(name), p.settings(f.name)))
			if !ok {
				continue
			}
			asked++
			is, err := kernel.TracePacket(ctx, trace.Packet{From: stranger(f.name),
				To: netip.AddrPortFrom(key.Addr, key.Port), Proto: key.Proto}, nodetrace.Kernel)
			if err != nil {
				return fmt.Sprintf("%v: read the kernel's rules: %v", f.name, err)
			}
			if is.Verdict != trace.Balance {
				missing++
			}
		}
		if 2*missing > asked {
			return fmt.Sprintf("%v: of %d cluster IPs of the snapshot, %d are not served", f.name, asked, missing)
		}
	}
	return ""
}

// servedIP returns the key of a cluster IP that has endpoints.
func servedIP(rows []*lb.Frontend) (lb.Key, bool) {
	for _, f := range rows {
		if f.Kind == lb.ClusterIP && f.Key.Proto != lb.SCTP && slices.ContainsFunc(f.Routes, func(r lb.Route) bool {
			return r.From == lb.Anywhere && r.To != nil
		}) {
			return f.Key, true
		}
	}
	return lb.Key{}, false
}

// stranger is a client in no network of the node (RFC 5737, RFC 3849).
func stranger(f lb.Family) netip.AddrPort {
	if f == lb.IPv6 {
		return netip.AddrPortFrom(netip.MustParseAddr("2001:db8::1"), 0)
	}
	return netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), 0)
}

// listsComplete ends the use of the snapshot.
func (p *proxy) listsComplete() {
	setGC(gcPercent)
	p.snapshots.listed.Store(true)
	if written := p.snapshots.serving.Swap(nil); written != nil {
		p.log.Info("The API server has listed Services and endpoints; the snapshot is no longer in use",
			"written", *written)
		p.factsChanged()
	}
}

// keepSnapshots writes snapshots until ctx ends. The channel closes after the last write.
func (p *proxy) keepSnapshots(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if p.snapshots.manager != nil {
			p.snapshots.manager.Run(ctx)
		}
	}()
	return done
}

// changed has a snapshot written if facts changed.
func (s *snapshots) changed(d cluster.Dirty) {
	if s.manager != nil && !d.IsZero() {
		s.manager.Changed()
	}
}

// notReady returns the reason why the node is not ready yet, though its rules are in force; "" if
// it is.
func (p *proxy) notReady() string {
	written := p.snapshots.serving.Load()
	if written == nil || p.config().Snapshot.Ready {
		return ""
	}
	return "the API server has not listed Services and endpoints; serving from a snapshot of " +
		written.UTC().Format(time.RFC3339)
}

// snapshotStats are for metrics.
func (p *proxy) snapshotStats() status.Snapshot {
	if p.snapshots.manager == nil {
		return status.Snapshot{}
	}
	s := p.snapshots.manager.Stats()
	serving := p.snapshots.serving.Load() != nil
	return status.Snapshot{Serving: serving, LastWrite: s.LastWrite, Failures: s.Failures}
}
