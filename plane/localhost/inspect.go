package localhost

import (
	"fmt"
	"net/netip"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/balance"
	"kube-proxy/trace"
)

// TracePacket completes the trace of a packet that the packet filter accepts: at a NodePort of this
// Proxy, its listener forwards it.
func (p *Proxy) TracePacket(packet trace.Packet, k trace.Kernel) trace.Kernel {
	if p == nil || packet.Proto != lb.TCP || k.Verdict != trace.Pass {
		return k
	}
	p.mu.Lock()
	at, row, d, why := p.at, p.rows[packet.To.Port()], p.doors[packet.To.Port()], p.failing[packet.To.Port()]
	p.mu.Unlock()
	first := func(format string, args ...any) { k.Way = append([]string{fmt.Sprintf(format, args...)}, k.Way...) }
	switch {
	case row == nil || row.Accepts() || packet.To.Addr() != at:
	case why != nil:
		first("this process cannot listen at %s: %v", packet.To, why)
	case d == nil:
		first("no listener of this process at %s", packet.To)
		k.Verdict = trace.Reject
	default:
		first("listener %s/tcp of this process, for %s; to it the packet passes:", packet.To, d.service)
		led(&k, d.turns.State(at))
	}
	return k
}

// led records the backends to which a listener forwards.
func led(k *trace.Kernel, s balance.State) {
	k.Verdict, k.Masquerade, k.Affine = trace.Balance, true, s.Stays
	for _, t := range s.Turns {
		k.Backends = append(k.Backends, trace.Backend{Address: t.Addr, Share: t.Share})
		if t.Failing > 0 {
			k.Way = append(k.Way, fmt.Sprintf("backend %s could not be reached and is tried last", t.Addr))
		}
	}
}

// Differences calls each for the NodePorts of the table that have no listener, or one with other
// backends, until it returns false.
func (p *Proxy) Differences(want *lb.Table, each func(trace.Difference) bool) {
	if p == nil {
		return
	}
	for f := range want.All() {
		if !isOurs(f.Key) {
			continue
		}
		if have, differs := p.compare(f); differs && !each(trace.Difference{Key: f.Key,
			Object:  fmt.Sprintf("listener %s/tcp", netip.AddrPortFrom(want.Node.Localhost, f.Key.Port)),
			Desired: "open", Actual: have}) {
			return
		}
	}
}

// compare reports whether the listener of a frontend differs from the wanted one, and describes it.
func (p *Proxy) compare(f *lb.Frontend) (have string, differs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	to, d := p.leadsTo(f), p.doors[f.Key.Port]
	switch {
	case to == nil:
		return "open", d != nil
	case d == nil:
		if why := p.failing[f.Key.Port]; why != nil {
			have = why.Error()
		}
		return have, true
	}
	backends := d.turns.Backends()
	for _, b := range backends {
		differs = differs || !to.Backends.Has(b)
	}
	return fmt.Sprintf("leads to %d backends, or to others", len(backends)), differs ||
		len(backends) != to.Backends.Len()
}
