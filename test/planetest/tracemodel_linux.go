package planetest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// asks compares the model's outcome for a packet with trace's, and with that which the plane reads
// from the model.
func (r *run) asks(p scenario.Packet, s scenario.Shot, m Meeting) error {
	if r.s.Trace == nil { // Run reports it
		return nil
	}
	begin := time.Now()
	packet := r.way(p.From, s, netip.Addr{})
	a := trace.Ask(r.table, r.how(), packet)
	f := &fate{answer: a}
	finding, followed := otherMeeting(a, m), 0
	if look, ok := tracer(r.plane); ok && finding == "" {
		followed++
		finding = unlike(context.Background(), look, packet, f)
	}
	r.s.inquired.add(1, followed, 0, 0, time.Since(begin))
	if finding != "" {
		return fmt.Errorf("%s\n%s", finding, a.Text(packet))
	}
	return nil
}

// otherMeeting returns the part of the model's outcome that is not in trace's answer; "" if all is.
func otherMeeting(a trace.Answer, m Meeting) string {
	var named []netip.AddrPort
	for _, b := range a.Backends {
		named = append(named, b.Address)
	}
	same := func(x, y []netip.AddrPort) bool {
		return len(x) == len(y) && !slices.ContainsFunc(x, func(b netip.AddrPort) bool {
			return !slices.Contains(y, b)
		})
	}
	switch translated := m.By != ""; {
	case translated && len(m.Backends) == 0 && a.Verdict == trace.Drop:
		return ""
	case translated != (a.Verdict == trace.Balance) || !translated && a.Verdict != trace.Pass:
		return fmt.Sprintf("trace says: %s; but it is translated by %q", a.Verdict, m.By)
	case translated && !same(named, m.Backends):
		return fmt.Sprintf("trace names the backends %v; but the model has %v", named, m.Backends)
	case translated && a.Masquerade == m.Kept:
		return fmt.Sprintf("trace says: masqueraded %t; but backends see the client's own address: %t", a.Masquerade,
			m.Kept)
	case translated && a.AffinitySeconds > 0 && !m.Sticky:
		return "trace says that the client stays with its backend; but it does not"
	}
	return ""
}

// noDifferences checks that the model does not differ from the table.
func (r *run) noDifferences(want *lb.Table) {
	look, looks := tracer(r.plane)
	r.s.inquired.add(0, 0, 1, 0, 0)
	if !looks {
		return
	}
	found, err := differences(context.Background(), look, want)
	switch {
	case err != nil:
		r.failf("  look for differences: %v", err)
	case len(found) > 0:
		r.failf("  the model differs from the table, though all was written:\n%s", indent(listed(found)))
	}
}
