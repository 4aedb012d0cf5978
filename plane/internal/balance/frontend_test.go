package balance

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

// node is a kernel that knows its addresses.
type node struct{}

func (n *node) own(a netip.Addr) (bool, error) {
	if a == netip.MustParseAddr("192.0.2.9") {
		return true, errors.New("no answer")
	}
	return a == netip.MustParseAddr("172.18.0.2"), nil
}

// Each client meets the first route that is for it, pods by their addresses (CF-33, SV-67).
func TestRoutesCF33(t *testing.T) {
	b, n := New(Config{}), &node{}
	o := NewOrigins(n.own)
	pods, host := setOf("ns/pods", 1), setOf("ns/host", 2)
	b.Set(pods, 0)
	b.Set(host, 0)
	row := b.Frontend(&lb.Frontend{Service: "ns/a", Routes: []lb.Route{
		{From: lb.Pods, Do: lb.Balance, To: pods}, {From: lb.Host, Do: lb.Balance, To: host},
		{From: lb.Anywhere, Do: lb.Drop},
	}}, o)
	prefix := lb.Detector{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for _, c := range []struct {
		detector lb.Detector
		from     string
		want     netip.AddrPort // not valid: dropped
	}{
		{prefix, "10.1.1.11", backend(1)},
		{prefix, "172.18.0.2", backend(2)},
		{prefix, "::ffff:172.18.0.2", backend(2)},
		{prefix, "172.18.0.100", netip.AddrPort{}},
		{prefix, "192.0.2.9", netip.AddrPort{}},
		{lb.Detector{Interface: "cbr0"}, "10.1.1.11", netip.AddrPort{}},
		{lb.Detector{}, "10.1.1.11", netip.AddrPort{}}, // SV-67
	} {
		o.Detect(c.detector)
		got := row.Pick(relay.Client{Addr: netip.AddrPortFrom(netip.MustParseAddr(c.from), 1)}, nil)
		if got != c.want {
			t.Errorf("%+v, %s: %s", c.detector, c.from, got)
		}
	}
}

// The outcome of an attempt counts for the backend, though the first route has none.
func TestDialledByFrontend(t *testing.T) {
	b := New(Config{})
	to := setOf("ns/a", 1, 2)
	set := b.Set(to, 0)
	row := b.Frontend(&lb.Frontend{Service: "ns/a", Routes: []lb.Route{{From: lb.Pods, Do: lb.Drop},
		{From: lb.Anywhere, Do: lb.Balance, To: to}}}, NewOrigins((&node{}).own))
	pick(t, row, 0) // no pods are known, so it is from anywhere
	row.Dialled(client(0), backend(1), refused)
	if n := count(t, set, 10)[backend(1)]; n != 0 || b.Stats().Failing != 1 {
		t.Errorf("%d clients get the backend that failed, %d fail", n, b.Stats().Failing)
	}
}

// The node reaches its own addresses from these, and yet is one client, which stays with one
// backend (SV-18).
func TestNodeIsOneClient(t *testing.T) {
	b := New(Config{})
	set := setOf("ns/a", 1, 2, 3)
	b.Set(set, time.Hour)
	row := b.Frontend(&lb.Frontend{Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}, nil)
	met := map[netip.AddrPort]bool{}
	for i := range 30 {
		a := netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
		backend := row.Pick(relay.Client{Addr: netip.AddrPortFrom(a, 40000), Local: netip.AddrPortFrom(a, 80)}, nil)
		met[backend] = true
	}
	if len(met) != 1 {
		t.Errorf("it met %v", met)
	}
}

// Source ranges leave others out whatever the routes say (SV-61), and frontends that reject refuse.
// Both hold no descriptor for the client.
func TestSourcesSV61(t *testing.T) {
	b := New(Config{})
	set := setOf("ns/a", 1)
	b.Set(set, 0)
	open := b.Frontend(&lb.Frontend{Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}},
		Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, nil)
	closed := b.Frontend(&lb.Frontend{Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}, nil)
	for _, c := range []struct {
		row  *Frontend
		from string
		want netip.AddrPort
	}{
		{open, "10.2.3.4", backend(1)}, {open, "::ffff:10.2.3.4", backend(1)}, {open, "11.0.0.1", netip.AddrPort{}},
		{closed, "10.2.3.4", netip.AddrPort{}},
	} {
		if got := c.row.Pick(relay.Client{Addr: netip.AddrPortFrom(netip.MustParseAddr(c.from), 1)},
			nil); got != c.want {
			t.Errorf("%s: %s, want %s", c.from, got, c.want)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		b.Run(fmt.Sprintf("affinity=%v", affinity > 0), func(b *testing.B) {
			s := New(Config{}).Set(setOf("ns/a", 1, 2, 3, 4), affinity)
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					s.Pick(client(i%10000), nil)
				}
			})
		})
	}
}
