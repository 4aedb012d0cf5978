package probe_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "kube-proxy/failover"
	"kube-proxy/failover/probe"
	"kube-proxy/internal/netlab"
)

// TestResults has the kernel's answer to each cause (FO-02): of a server, of none, of firewalls
// with each kind of refusal, of routers, and of this kernel itself.
func TestResults(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 80, "pod4", netlab.Node2, "pod1")
	reject := func(host, rule string) func(*testing.T) {
		return func(t *testing.T) {
			for _, c := range []string{"add table inet fw",
				"add chain inet fw c { type filter hook prerouting priority 0; }",
				"add rule inet fw c tcp dport 80 " + rule} {
				run(t, lab, host, "nft", c)
			}
			t.Cleanup(func() { run(t, lab, host, "nft", "delete table inet fw") })
		}
	}
	route := func(host, kind string, to [2]string) func(*testing.T) {
		return func(t *testing.T) {
			for i, a := range to {
				family := [2]string{"-4", "-6"}[i]
				run(t, lab, host, "ip", family, "route", "add", kind, a)
				t.Cleanup(func() { run(t, lab, host, "ip", family, "route", "del", kind, a) })
			}
		}
	}
	lost := [2]string{"10.1.2.77", "fd00:10:1:2::77"}
	tests := []struct {
		name string
		with func(*testing.T)
		to   string // a host, or lost
		port uint16
		here bool
		want Result
	}{
		{name: "a server", to: "pod4", port: 80, want: Answers},
		{name: "a server on this node", to: "pod1", port: 80, here: true, want: Answers},
		{name: "no server", to: "pod4", port: 81, want: Refuses},
		{name: "a drop", with: reject("pod4", "drop"), to: "pod4", port: 80, want: Silent},
		{name: "a reset of a firewall", with: reject("pod4", "reject with tcp reset"), to: "pod4", port: 80,
			want: Refuses},
		{name: "port unreachable", with: reject("pod4", "reject"), to: "pod4", port: 80, want: Refuses},
		{name: "prohibited", with: reject("pod4", "reject with icmpx admin-prohibited"), to: "pod4", port: 80,
			want: Prohibited},
		{name: "the pod is gone", with: route(netlab.Node2, "unreachable", lost), to: "lost", port: 80, want: NoRoute},
		{name: "its node prohibits it", with: route(netlab.Node2, "prohibit", lost), to: "lost", port: 80,
			want: Prohibited},
		{name: "its node drops it", with: route(netlab.Node2, "blackhole", lost), to: "lost", port: 80, want: Silent},
		{name: "this node has no route", with: route(netlab.Node1, "unreachable", lost), to: "lost", port: 80,
			want: Silent},
		{name: "this node has no route to its own pod", with: route(netlab.Node1, "unreachable", lost), to: "lost",
			port: 80, here: true, want: NoRoute},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.with != nil {
				test.with(t)
			}
			for _, six := range []bool{false, true} {
				a := netlab.Addr(test.to, six)
				if test.to == "lost" {
					a = netip.MustParseAddr(lost[0])
					if six {
						a = netip.MustParseAddr(lost[1])
					}
				}
				quiet := 0
				lab.On(netlab.Node1, func() {
					p := Probe{At: netip.AddrPortFrom(a, test.port), Tries: Tries, Here: test.here}
					got, err := probe.Run(t.Context(), p, func() { quiet++ })
					if err != nil || got != test.want {
						t.Errorf("%s: %s, %v; want %s", p.At, got, err, test.want)
					}
					if quiet > 1 || test.want == Silent && quiet == 0 {
						t.Errorf("%s is %s, reported as quiet %d times", p.At, got, quiet)
					}
				})
			}
		})
	}
}

// TestLateAnswer: an answer to a later try counts.
func TestLateAnswer(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	lab.Serve(netlab.TCP, 80, "pod4")
	run(t, lab, "pod4", "nft", "add table inet fw; add chain inet fw c { type filter hook prerouting priority 0; }; "+
		"add rule inet fw c tcp dport 80 drop")
	lab.On(netlab.Node1, func() {
		quiet := 0
		p := Probe{At: netip.AddrPortFrom(netlab.Addr("pod4", false), 80), Tries: Tries}
		got, err := probe.Run(t.Context(), p, func() {
			quiet++
			run(t, lab, "pod4", "nft", "delete table inet fw")
		})
		if err != nil || got != Answers || quiet != 1 {
			t.Errorf("%s, %v, quiet %d times; want an answer after one", got, err, quiet)
		}
	})
}

// TestEnd: a probe ends with its context.
func TestEnd(t *testing.T) {
	lab := netlab.ForTest(t, netlab.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	lab.On(netlab.Node1, func() {
		p := Probe{At: netip.MustParseAddrPort("172.18.0.77:80"), Tries: Tries}
		if got, err := probe.Run(ctx, p, nil); got != Unknown || err != nil {
			t.Errorf("%s, %v; want %s", got, err, Unknown)
		}
	})
}

func run(t *testing.T, lab *netlab.TestLab, host, name string, args ...string) {
	t.Helper()
	if out, err := lab.Command(host, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %s %v: %v\n%s", host, name, args, err, out)
	}
}
