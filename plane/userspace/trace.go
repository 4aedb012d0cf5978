package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/balance"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/trace"
)

// errNoTracer means that the redirector's state cannot be read, as on Windows.
var errNoTracer = errors.New("the redirecting rules cannot be inspected")

// TraceMode returns the properties of the mode with this redirector for [trace.Ask].
func (p *Plane) TraceMode(m trace.Mode) trace.Mode {
	m.PassesUnknown = p.redirect.Name() != "nftables"
	m.Unfiltered = p.addresses != nil
	return m
}

// TracePacket is part of mode.Tracer. The redirector returns the listener to which the kernel
// redirects the packet, and the listener's balancer returns its next backends. TracePacket holds no
// lock of the plane while it reads the kernel.
func (p *Plane) TracePacket(ctx context.Context, packet trace.Packet, walk mode.Walk) (trace.Kernel, error) {
	tracer, ok := p.redirect.(redirect.Tracer)
	if !ok {
		return trace.Kernel{}, fmt.Errorf("userspace: %w", errNoTracer)
	}
	k, err := tracer.TracePacket(ctx, packet, walk)
	if err != nil {
		return trace.Kernel{}, fmt.Errorf("userspace: follow a packet to %s: %w", packet.To, err)
	}
	if k.Verdict != trace.Balance || len(k.Backends) == 0 {
		return k, nil
	}
	at := k.Backends[0].Address
	k.Backends, k.Masquerade = nil, false
	id, turns := p.setAt(port{packet.Proto, at.Port()})
	if turns == nil {
		k.Way = append(k.Way, fmt.Sprintf("no listener of this process at %s/%s: another program answers, or the "+
			"node refuses", at, packet.Proto))
		k.Verdict = trace.Reject
		return k, nil
	}
	k.Way = append(k.Way, fmt.Sprintf("listener :%d/%s of this process, for %s", at.Port(), packet.Proto, id))
	state := turns.State(packet.From.Addr())
	k.Verdict = trace.Reject
	if len(state.Turns) > 0 {
		k.Verdict, k.Masquerade = trace.Balance, true
		reportTurns(&k, state)
	}
	return k, nil
}

// reportTurns reports the next backends.
func reportTurns(k *trace.Kernel, state balance.State) {
	const most = 8
	failing := 0
	for _, t := range state.Turns {
		k.Backends = append(k.Backends, trace.Backend{Address: t.Addr, Share: t.Share})
		if t.Failing == 0 {
			continue
		}
		failing++
		if failing <= most {
			k.Way = append(k.Way, fmt.Sprintf("backend %s could not be reached: for %s more it is tried last, and "+
				"its part goes to the others", t.Addr, t.Failing.Round(time.Second/10)))
		}
	}
	if failing > most {
		k.Way = append(k.Way, fmt.Sprintf("and %d more that could not be reached", failing-most))
	}
	if state.Affinity > 0 {
		k.Way = append(k.Way, fmt.Sprintf("clients stay with their backend for %s", state.Affinity))
	}
	k.Affine = state.Stays
	if k.Affine.IsValid() {
		k.Way = append(k.Way, fmt.Sprintf("this client stays with %s", k.Affine))
	}
}

// Differences is part of mode.Tracer: it compares the redirector's state in the kernel and the
// listeners of this process with the table.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	tracer, ok := p.redirect.(redirect.Tracer)
	if !ok {
		return fmt.Errorf("userspace: %w", errNoTracer)
	}
	d := mode.NewReporter(ctx, each)
	leads := func(yield func(redirect.Entry) bool) {
		for f := range want.All() {
			if f.Accepts() {
				continue
			}
			l, leads := p.leadOf(f, d)
			if d.Err() != nil || leads && !yield(l) {
				return
			}
		}
	}
	if err := d.Done(tracer.Differences(ctx, want.Node, leads, d)); err != nil {
		return fmt.Errorf("userspace: redirect by %s, %s: %w", p.redirect.Name(), p.cfg.Family, err)
	}
	return nil
}

// leadOf returns the redirector's entry of a frontend, with the ports of this process. A frontend
// without listener is reported, and has no entry.
func (p *Plane) leadOf(f *lb.Frontend, report *mode.Reporter) (l redirect.Entry, leads bool) {
	l = redirect.Entry{Key: f.Key, Kind: f.Kind, Sources: f.Sources}
	for _, r := range f.Routes {
		to := redirect.Route{From: r.From, Do: r.Do}
		if r.Do == lb.Balance {
			d, turns := p.doorOf(r.To.ID)
			switch {
			case d == nil && f.Key.Proto == lb.SCTP: // the kernel may have none, see behindRules
				to.Do = lb.Reject
			case d == nil:
				report.Report(f.Key, "listener for "+r.To.ID.String(), "open", "")
				return l, false
			case !holds(turns.Backends(), r.To, report, f.Key):
				return l, false
			default:
				to.Do, to.Port = 0, d.port().number
			}
		}
		l.Routes = append(l.Routes, to)
	}
	l.Routes = redirect.Shortest(l.Routes)
	return l, true
}

// holds compares the backends of a listener's set, and reports whether to continue.
func holds(have []netip.AddrPort, want *lb.BackendSet, report *mode.Reporter, k lb.Key) bool {
	n := want.Backends.Len()
	other := func(a netip.AddrPort) bool { return !want.Backends.Has(a) }
	return len(have) == n && !slices.ContainsFunc(have, other) ||
		report.Report(k, "backends of listener for "+want.ID.String(), fmt.Sprintf("%d backends", n),
			fmt.Sprintf("%d backends, or others", len(have))) == nil
}

// doorOf returns the listener to which rules redirect for a set, and its balancer; nil for none.
func (p *Plane) doorOf(id lb.SetID) (*door, *balance.Set) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := p.services[serviceName{id.Service, id.Proto}]
	if s == nil || s.sets[id.Scope] == nil || s.sets[id.Scope].door == nil {
		return nil, nil
	}
	return s.sets[id.Scope].door, s.sets[id.Scope].turns
}

// setAt returns the set of the listener at a port to which rules redirect; nil for none.
func (p *Plane) setAt(at port) (lb.SetID, *balance.Set) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, s := range p.services {
		for _, set := range s.sets {
			if set.door != nil && set.door.port() == at {
				return set.now.ID, set.turns
			}
		}
	}
	return lb.SetID{}, nil
}
