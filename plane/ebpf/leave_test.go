//go:build linux

package ebpf

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/test/tables"
)

// TestManyBackendsLeave: a tenth of 10,000 endpoints leave at once under load. No new
// connection fails, and those that begin afterwards reach none of them (EB-11).
func TestManyBackendsLeave(t *testing.T) {
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
	lab.On("pod1", func() {
		l, err := net.Listen("tcp", ":9000")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, c.LocalAddr())
				c.Close()
			}
		}()
	})
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
	done, result, started := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		n := 0
		lab.On("pod3", func() {
			for ; ; n++ {
				if n == 100 {
					close(started)
				}
				select {
				case <-done:
					result <- nil
					return
				default:
				}
				if _, err := reach("10.96.0.10:80"); err != nil {
					result <- fmt.Errorf("connection %d: %w", n, err)
					return
				}
			}
		})
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
	lab.On("pod2", func() {
		for range 300 {
			at, err := reach("10.96.0.10:80")
			if err != nil {
				t.Fatal(err)
			}
			if at.Addr().Less(addr(backends / 10)) {
				t.Errorf("a connection reached %s, which had left", at)
			}
		}
	})
	close(done)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// reach connects in the calling thread's namespace, and returns where.
func reach(to string) (at netip.AddrPort, err error) {
	c, err := net.DialTimeout("tcp", to, 20*time.Second)
	if err != nil {
		return at, err
	}
	defer c.Close()
	text, err := io.ReadAll(c)
	if err != nil {
		return at, err
	}
	return netip.ParseAddrPort(strings.TrimSpace(string(text)))
}
