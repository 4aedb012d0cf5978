package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// inNetns runs the rest of the test in a network namespace of its own.
func inNetns(t testing.TB) {
	t.Helper()
	netlab.EnterForTest(t)
}

func newPlane(t testing.TB, f lb.Family) *Plane {
	t.Helper()
	p, err := New(Config{Family: f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// world makes services for tests: its addresses and names follow from numbers.
type world struct{ fam lb.Family }

func (w world) addr(net byte, i int) netip.Addr {
	if w.fam == lb.IPv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: net, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{net, byte(i >> 16), byte(i >> 8), byte(i)})
}

func (w world) node() lb.Node {
	bits := 8
	if w.fam == lb.IPv6 {
		bits = 16
	}
	prefix := func(net byte) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(w.addr(net, 0), bits).Masked()} }
	return lb.Node{
		NodePorts:    []netip.Prefix{netip.PrefixFrom(w.addr(192, 1), w.addr(192, 1).BitLen())},
		Pods:         lb.Detector{Prefixes: prefix(100)},
		ServiceCIDRs: prefix(10),
	}
}

func (w world) set(service string, scope lb.Scope, first, n int) *lb.BackendSet {
	s := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: scope}}
	for i := range n {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(w.addr(100, first+i), 8080), Local: i%3 == 0})
	}
	return s
}

// clusterIP is service i with n backends from address first on.
func (w world) clusterIP(i, first, n int) (lb.Owner, []*lb.Frontend) {
	name := fmt.Sprintf("ns/svc-%d", i)
	f := &lb.Frontend{Key: lb.Key{Addr: w.addr(10, i+1), Port: 80, Proto: lb.TCP}, Service: name + ":http", Kind: lb.ClusterIP}
	if n == 0 {
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
	} else {
		set := w.set(f.Service, lb.Cluster, first, n)
		f.Routes = []lb.Route{{From: lb.Pods, Do: lb.Balance, To: set}, {From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}
	}
	return lb.Owner{Name: name}, []*lb.Frontend{f}
}

// full is service i with every kind of frontend; affinity if sticky is not 0.
func (w world) full(i, first, n, local int, sticky time.Duration) (lb.Owner, []*lb.Frontend) {
	o, fronts := w.clusterIP(i, first, n)
	if n == 0 {
		return o, fronts
	}
	cluster := fronts[0].Set(lb.Cluster)
	outside := []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cluster}, {From: lb.Host, Do: lb.Balance, Masq: true, To: cluster}}
	if local > 0 {
		outside = append(outside, lb.Route{From: lb.Anywhere, Do: lb.Balance, To: w.set(fronts[0].Service, lb.Local, first, local)})
	} else {
		outside = append(outside, lb.Route{From: lb.Anywhere, Do: lb.Drop})
	}
	front := func(a netip.Addr, port int, kind lb.Kind, sources ...netip.Prefix) *lb.Frontend {
		return &lb.Frontend{Key: lb.Key{Addr: a, Port: uint16(port), Proto: lb.TCP}, Service: fronts[0].Service, Kind: kind, Routes: outside, Sources: sources}
	}
	fronts = append(fronts, front(netip.Addr{}, 30000+i, lb.NodePort), front(w.addr(203, i+1), 80, lb.ExternalIP),
		front(w.addr(198, i+1), 80, lb.LoadBalancer, w.node().Pods.Prefixes[0], netip.PrefixFrom(w.addr(198, i+1), w.addr(198, i+1).BitLen())))
	for _, f := range fronts {
		f.Affinity = sticky
	}
	return o, fronts
}

func (w world) table(n int, backends int) *lb.Table {
	t := &lb.Table{Node: w.node()}
	for i := range n {
		t.Replace(w.clusterIP(i, i*backends, backends))
	}
	return t
}

func reset(t testing.TB, p *Plane, want *lb.Table) {
	t.Helper()
	if err := p.Reset(context.Background(), want); err != nil {
		t.Fatal(err)
	}
}

func apply(t testing.TB, p *Plane, changes []lb.Change, _ []lb.Contest) {
	t.Helper()
	if err := p.Apply(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

func dump(t testing.TB, p *Plane) string {
	t.Helper()
	s, err := p.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(s, "FAULT") {
		t.Errorf("the table is inconsistent:\n%s", s)
	}
	return s
}

// fresh is the dump of a table that was never anything else.
func fresh(t *testing.T, f lb.Family, want *lb.Table) string {
	t.Helper()
	var s string
	done := make(chan struct{})
	go func() { // a thread and a namespace of its own
		defer close(done)
		inNetns(t)
		p := newPlane(t, f)
		reset(t, p, want)
		s = dump(t, p)
	}()
	<-done
	return s
}

// runNFT runs the nft program, which tests may use.
func runNFT(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func eachFamily(t *testing.T, f func(t *testing.T, w world)) {
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) { f(t, world{fam}) })
	}
}
