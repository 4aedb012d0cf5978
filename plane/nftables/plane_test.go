package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"kube-proxy/lb"
)

// inNetns runs the rest of the test in a network namespace of its own.
func inNetns(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread dies with the test's goroutine
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Set(home); ns.Close(); home.Close(); runtime.UnlockOSThread() })
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

func backends(n, local int) []lb.Backend {
	var out []lb.Backend
	for i := range n {
		out = append(out, lb.Backend{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.1.1.%d:8080", i+1)), Local: i < local})
	}
	return out
}

func TestTry(t *testing.T) {
	inNetns(t)
	p := newPlane(t, lb.IPv4)
	tab := &lb.Table{Node: lb.Node{
		NodePorts:    []netip.Prefix{netip.MustParsePrefix("172.18.0.2/32")},
		Pods:         lb.Detector{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}}
	cl := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Cluster}, Backends: backends(3, 1)}
	lo := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Local}, Backends: backends(1, 1)}
	fs := []*lb.Frontend{
		{Key: lb.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: lb.TCP}, Service: "shop/web:http", Kind: lb.ClusterIP,
			Routes: []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cl}, {From: lb.Anywhere, Do: lb.Balance, Masq: true, To: cl}}},
		{Key: lb.Key{Port: 30080, Proto: lb.TCP}, Service: "shop/web:http", Kind: lb.NodePort,
			Routes: []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cl}, {From: lb.Host, Do: lb.Balance, Masq: true, To: cl}, {From: lb.Anywhere, Do: lb.Balance, To: lo}}},
		{Key: lb.Key{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Proto: lb.TCP}, Service: "shop/web:http", Kind: lb.LoadBalancer,
			Sources:  []netip.Prefix{netip.MustParsePrefix("172.18.0.0/24"), netip.MustParsePrefix("192.0.2.1/32")},
			Affinity: 10800 * time.Second,
			Routes:   []lb.Route{{From: lb.Pods, Do: lb.Balance, To: cl}, {From: lb.Anywhere, Do: lb.Drop}}},
	}
	tab.Replace(lb.Owner{Name: "shop/web"}, fs)
	if err := p.Reset(context.Background(), tab); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("nft", "list", "table", "ip", "kube-proxy").CombinedOutput()
	fmt.Println(string(out), err)
	s := p.Stats()
	if err := p.Reset(context.Background(), tab); err != nil {
		t.Fatal(err)
	}
	fmt.Println(s, p.Stats())
}
