//go:build linux

package iptables

import (
	"net/netip"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// On a host that refuses all other input, load balancers reach the port that reports a Service's
// endpoints, and no other (DP-08).
func TestHealthCheckPortIsOpenDP08(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		lab := netlab.ForTest(t, netlab.Options{})
		lab.Serve(netlab.TCP, 32100, "node1")
		lab.Serve(netlab.TCP, 32101, "node1")
		opens := func(port uint16, timeout time.Duration) bool {
			to := netip.AddrPortFrom(netip.MustParseAddr("172.18.0.2"), port)
			_, err := lab.Dial("client", netlab.TCP, to, netlab.DialOptions{Timeout: timeout})
			return err == nil
		}
		// Timeouts for expected and unexpected replies.
		const yes, no = netlab.DefaultTimeout, 500 * time.Millisecond
		if !opens(32100, yes) || !opens(32101, yes) {
			t.Fatal("the ports are not even open without rules")
		}
		table := shopTable()
		lab.On("node1", func() {
			run(t, "", "iptables-"+string(b), "-P", "INPUT", "DROP")
			p := newPlane(t, Config{Family: lb.IPv4, Backend: b})
			reset(t, p, table)
			if opens(32100, no) {
				t.Error("the port is open though no Service has it")
			}
			replace(t, p, table)(healthCheck("shop/web2", 32100))
		})
		if !opens(32100, yes) {
			t.Error("the health check's port is closed")
		}
		if opens(32101, no) {
			t.Error("another port is open")
		}
	})
}
