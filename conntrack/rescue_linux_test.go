package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/failover"
	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// rescueTable fills the table of a new namespace with four flows to each of podA and podB: a first
// packet without an answer over TCP and UDP, and established connections, of a Service and of a
// client that made its own to the endpoint.
func rescueTable(t *testing.T) namespace {
	t.Helper()
	ns := newNamespace(t)
	const synSent = 1 // TCP_CONNTRACK_SYN_SENT
	var entries []conntrack.Entry
	for _, pod := range []string{podA, podB} {
		from := netip.MustParseAddrPort(pod)
		for _, e := range []conntrack.Entry{
			{Orig: conntrack.Tuple{To: dns, Proto: uint8(lb.UDP)}},
			{Orig: conntrack.Tuple{To: dns, Proto: uint8(lb.TCP)}, State: synSent},
			{Orig: conntrack.Tuple{To: dns, Proto: uint8(lb.TCP)}, State: conntrack.TCPEstablished,
				Status: conntrack.SeenReply | conntrack.Assured},
			{Orig: conntrack.Tuple{To: from, Proto: uint8(lb.TCP)}, State: conntrack.TCPEstablished,
				Status: conntrack.SeenReply | conntrack.Assured},
		} {
			e.Orig.From, e.Timeout = clientN(len(entries)), 600
			e.Reply = conntrack.Tuple{From: from, To: e.Orig.From, Proto: e.Orig.Proto}
			entries = append(entries, e)
		}
	}
	var err error
	ns.Do(func() {
		err = conntrack.Fill(t.Context(), len(entries), func(i int) conntrack.Entry { return entries[i] })
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func (ns namespace) rescuer(t *testing.T) *Rescuer {
	t.Helper()
	var r *Rescuer
	var err error
	ns.Do(func() { r, err = NewRescuer(lb.IPv4) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// rescued returns an endpoint of each protocol at the address and port.
func rescued(at string) []failover.Endpoint {
	addr := netip.MustParseAddrPort(at)
	return []failover.Endpoint{{Addr: addr, Proto: lb.TCP}, {Addr: addr, Proto: lb.UDP}}
}

// FO-11: only unanswered flows of Services to the endpoint go.
func TestRescue(t *testing.T) {
	ns := rescueTable(t)
	r := ns.rescuer(t)
	for _, c := range []struct {
		endpoints []failover.Endpoint
		want      int
	}{{rescued("[fd00::1]:5353"), 0}, {rescued("10.1.0.1:80"), 0}, {rescued(podA), 2}, {rescued(podA), 0}} {
		if n, err := r.Rescue(t.Context(), c.endpoints); err != nil || n != c.want {
			t.Errorf("%v: deleted %d entries, %v; want %d", c.endpoints, n, err, c.want)
		}
	}
	expectFlows(t, ns, lb.IPv4, "tcp 10.1.0.1:5353 10.1.0.1:5353", "tcp 10.1.0.2:5353 10.1.0.2:5353",
		"tcp 10.96.0.10:53 10.1.0.1:5353", "tcp 10.96.0.10:53 10.1.0.2:5353", "udp 10.96.0.10:53 10.1.0.2:5353")
	if n, err := r.Rescue(t.Context(), slices.Concat(rescued(podC), rescued(podB), rescued(podA))); err != nil ||
		n != 2 {
		t.Errorf("one of three endpoints has unanswered flows: deleted %d entries, %v; want 2", n, err)
	}
}

// FO-13: of each endpoint the established connections of Services, not those that clients made to
// it, nor those without an answer.
func TestEstablished(t *testing.T) {
	r := rescueTable(t).rescuer(t)
	for _, c := range []struct {
		endpoints []failover.Endpoint
		want      []string
	}{
		{rescued(podC), nil}, {rescued(podA), []string{clientN(2).String() + " " + podA}},
		{[]failover.Endpoint{{Addr: podAP, Proto: lb.UDP}}, nil},
		{slices.Concat(rescued(podC), rescued(podA), rescued(podB)),
			[]string{clientN(2).String() + " " + podA, clientN(6).String() + " " + podB}},
	} {
		var got []string
		if err := r.Established(t.Context(), c.endpoints, func(c Connection) {
			if c.Frontend != dns {
				t.Errorf("a connection to %v", c.Frontend)
			}
			got = append(got, fmt.Sprint(c.Client, " ", c.Endpoint))
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("to %v: %q, want %q", c.endpoints, got, c.want)
		}
	}
}
