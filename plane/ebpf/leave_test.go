//go:build linux

package ebpf

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/test/tables"
)

// TestManyBackendsLeave: a tenth of 10,000 endpoints leave at once under load. No new
// connection fails, and those that begin afterwards reach none of them (EB-11).
func TestManyBackendsLeave(t *testing.T) {
	kerneltest.NotEmulated(t)
	const backends = 10_000
	lab := netlab.ForTest(t, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	all := &planes{bpffs: bpffs(t)}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}) }
	table := func(gone int) *lb.Table {
		var s strings.Builder
		s.WriteString("node nodeports 0.0.0.0/0 pods 10.1.0.0/16\n10.96.0.10:80/tcp shop/web:http clusterip\n" +
			"  anywhere balance shop/web:http/tcp/cluster\nset shop/web:http/tcp/cluster\n")
		for i := gone; i < backends; i++ {
			fmt.Fprintf(&s, "  %s:9000 local\n", addr(i))
		}
		want, err := tables.Parse(s.String())
		if err != nil {
			t.Fatal(err)
		}
		return want
	}
	route := func(host string, args ...string) {
		t.Helper()
		out, err := lab.Command(host, "ip", append([]string{"route", "add"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip route add %v: %v: %s", args, err, out)
		}
	}
	route("pod1", "local", "100.64.0.0/16", "dev", "lo")
	route(netlab.Node1, "100.64.0.0/16", "via", "10.1.1.11")
	lab.Serve(netlab.TCP, 9000, "pod1")
	var p *Plane
	lab.On(netlab.Node1, func() {
		var err error
		if p, err = all.at(lb.IPv4, lab.Cgroup(netlab.Node1)); err != nil {
			t.Fatal(err)
		}
		if _, err := planetest.ResetAll(t.Context(), checked{p}, table(0)); err != nil {
			t.Fatal(err)
		}
	})
	defer p.Close()
	vip := netip.MustParseAddrPort("10.96.0.10:80")
	dial := func(from string) (netip.Addr, error) {
		reply, err := lab.Dial(from, netlab.TCP, vip, netlab.DialOptions{})
		return reply.At.Addr(), err
	}
	done, result, started := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			if n == 100 {
				close(started)
			}
			select {
			case <-done:
				result <- nil
				return
			default:
			}
			if _, err := dial("pod3"); err != nil {
				result <- fmt.Errorf("connection %d: %w", n, err)
				return
			}
		}
	}()
	select {
	case <-started:
	case err := <-result:
		t.Fatal(err)
	}
	lab.On(netlab.Node1, func() {
		if _, err := (checked{p}).Apply(t.Context(), changesTo(table(backends/10))); err != nil {
			t.Error(err)
		}
	})
	for range 300 {
		at, err := dial("pod2")
		if err != nil {
			t.Fatal(err)
		}
		if at.Less(addr(backends / 10)) {
			t.Errorf("a connection reached %s, which had left", at)
		}
	}
	close(done)
	if err := <-result; err != nil {
		t.Error(err)
	}
}
