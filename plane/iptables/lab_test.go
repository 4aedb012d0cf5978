package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"os"
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
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	netlab.EnterForTest(t)
}

// needs skips a test where the machine has no such iptables, or the kernel no such tables.
func needs(t testing.TB, b Backend) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("iptables needs root")
	}
	for _, family := range []string{"iptables-", "ip6tables-"} {
		program := family + string(b)
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
		if err := netlab.Isolated(0, exec.Command(program, "-t", "nat", "-S").Run); err != nil {
			t.Skipf("this kernel has no tables for %s: %v", program, err)
		}
	}
}

func newPlane(t testing.TB, cfg Config) *Plane {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
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

// auditAll is an audit that lists all rules, whatever was noticed.
func auditAll(p *Plane) (mended int, err error) {
	p.listed = time.Time{}
	return p.Audit(context.Background(), true)
}

func dump(t testing.TB, p *Plane) string {
	t.Helper()
	s, err := p.Dump()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a program of iptables, which must succeed, with that input.
func run(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eachKind runs a test with both back ends and both families, each in a namespace of its own.
func eachKind(t *testing.T, f func(t *testing.T, w world, cfg Config)) {
	for _, b := range []Backend{NFT, Legacy} {
		for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(fmt.Sprintf("%s/%s", b, fam), func(t *testing.T) {
				needs(t, b)
				inNetns(t)
				f(t, world{fam}, Config{Family: fam, Backend: b})
			})
		}
	}
}

// world makes services for tests: addresses and names follow from numbers.
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
	return lb.Node{
		NodePorts: []netip.Prefix{netip.PrefixFrom(w.addr(192, 1), w.addr(192, 1).BitLen())},
		Pods:      lb.Detector{Prefixes: []netip.Prefix{netip.PrefixFrom(w.addr(100, 0), bits).Masked()}},
	}
}

// service is service i, a cluster IP with n backends from address first on.
func (w world) service(i, first, n int) (lb.Owner, []*lb.Frontend) {
	name := fmt.Sprintf("ns/svc-%d", i)
	f := &lb.Frontend{Key: lb.Key{Addr: w.addr(10, i+1), Port: 80, Proto: lb.TCP}, Service: name + ":http", Kind: lb.ClusterIP}
	if n == 0 {
		f.Routes = []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
		return lb.Owner{Name: name}, []*lb.Frontend{f}
	}
	set := w.set(f.Service, lb.Cluster, first, n)
	f.Routes = []lb.Route{{From: lb.Pods, Do: lb.Balance, To: set}, {From: lb.Anywhere, Do: lb.Balance, Masq: true, To: set}}
	return lb.Owner{Name: name}, []*lb.Frontend{f}
}

func (w world) set(service string, scope lb.Scope, first, n int) *lb.BackendSet {
	s := &lb.BackendSet{ID: lb.SetID{Service: service, Proto: lb.TCP, Scope: scope}}
	for i := range n {
		s.Backends = append(s.Backends, lb.Backend{Addr: netip.AddrPortFrom(w.addr(100, first+i), 8080), Local: i%3 == 0})
	}
	return s
}

// full is service i with every kind of address, policy Local and source ranges.
func (w world) full(i, first, n int, sticky time.Duration) (lb.Owner, []*lb.Frontend) {
	o, fronts := w.service(i, first, n)
	cluster := fronts[0].Set(lb.Cluster)
	local := w.set(fronts[0].Service, lb.Local, first, 1)
	outside := []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cluster}, {From: lb.Host, Do: lb.Balance, Masq: true, To: cluster},
		{From: lb.Anywhere, Do: lb.Balance, To: local}}
	front := func(a netip.Addr, port int, kind lb.Kind, sources ...netip.Prefix) {
		fronts = append(fronts, &lb.Frontend{Key: lb.Key{Addr: a, Port: uint16(port), Proto: lb.TCP}, Service: fronts[0].Service,
			Kind: kind, Routes: outside, Sources: sources})
	}
	front(netip.Addr{}, 30000+i, lb.NodePort)
	front(w.addr(203, i+1), 80, lb.ExternalIP)
	front(w.addr(198, i+1), 80, lb.LoadBalancer, w.node().Pods.Prefixes[0], netip.PrefixFrom(w.addr(198, i+1), w.addr(198, i+1).BitLen()))
	for _, f := range fronts {
		f.Affinity = sticky
	}
	return o, fronts
}

// table has n services, each with that many backends.
func (w world) table(n, backends int) *lb.Table {
	t := &lb.Table{Node: w.node()}
	for i := range n {
		t.Replace(w.service(i, i*backends, backends))
	}
	return t
}
