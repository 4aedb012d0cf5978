//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/kerneltest"
	"kube-proxy/trace"
)

// pinnedPort is the client's port of connections that are pinned.
const pinnedPort = 40000

// TestTracePinned has connections which conntrack keeps with a pod that is no endpoint any more:
// trace leads with them, with and without the client's port, and the command that it prints heals
// them. A connection to an endpoint is none (NT-05).
func TestTracePinned(t *testing.T) {
	for _, f := range []nodeFault{
		{name: "TCP"}, {name: "TCP over IPv6", six: true}, {name: "UDP", udp: true},
		{name: "UDP over IPv6", six: true, udp: true},
	} {
		t.Run(f.name, func(t *testing.T) {
			n := newTraceLab(t, "nftables")
			p := n.serve()
			defer p.stop()
			f.from, f.port = "pod1", pinnedPort
			c := n.connection(t, f, "pod2")
			if a, text := n.traced(t, f); len(a.Rest.Pinned) > 0 || a.Wrong() || len(a.Conntrack) != 1 {
				t.Fatalf("before:\n%s", text())
			}
			n.dual("one", 10, "pod4")
			n.moved(t, f)
			if f.udp { // the proxy deletes that flow
				n.insert(t, f)
			}
			if r, err := c.Exchange(); err != nil || r.Server != "pod2" {
				t.Fatalf("%v, %v: nothing is pinned", r, err)
			}
			do := n.pinned(t, f)
			n.shell(t, do)
			c.Close() // TCP: the endpoint does not know it
			n.connection(t, f, "pod4")
			if a, text := n.traced(t, f); len(a.Rest.Pinned) > 0 || a.Wrong() || a.Rest.Verdict != trace.Delivered {
				t.Errorf("after %s:\n%s", do, text())
			}
		})
	}
}

// TestTraceOffloaded has a flowtable take a connection: its packets bypass a rule of forward, and
// trace says so. Those of another connection meet the rule (NT-07).
func TestTraceOffloaded(t *testing.T) {
	kerneltest.Every(t)
	n := newTraceLab(t, "nftables")
	p := n.serve()
	defer p.stop()
	const table = `table ip t { flowtable f { hook ingress priority 0; devices = { vethpod1, vethpod2 }; }; ` +
		`chain c { type filter hook forward priority 0; ip protocol tcp flow add @f; %s }; }`
	if out, err := n.Command(netlab.Node1, "nft", fmt.Sprintf(table, "")).CombinedOutput(); err != nil {
		t.Skipf("this kernel has no flowtables; test/vm/suites runs the test on 6.12: %v: %s", err, out)
	}
	f := nodeFault{from: "pod1", port: pinnedPort}
	c := n.connection(t, f, "pod2")
	exchange := func() {
		t.Helper()
		if r, err := c.Exchange(); err != nil || r.Server != "pod2" {
			t.Fatalf("%v, %v", r, err)
		}
	}
	until(t, func() string {
		exchange()
		out, err := n.Command(netlab.Node1, "conntrack", "-L", "-p", "tcp", "--sport", fmt.Sprint(pinnedPort)).Output()
		if err == nil && strings.Contains(string(out), "OFFLOAD") {
			return ""
		}
		return fmt.Sprintf("the connection is not offloaded: %s, %v", out, err)
	})
	n.shell(t, "nft add rule ip t c drop")
	exchange()
	if a, text := n.traced(t, f); a.Rest.Verdict != trace.Delivered || !a.Conntrack[0].Offloaded {
		t.Errorf("offloaded:\n%s", text())
	}
	f.port = 0
	n.fault(t, nodeFault{do: "true", undo: "true", expect: trace.Dropped, by: "chain c, rule 2"}, "nftables")
	n.shell(t, "nft flush chain ip t c; nft add rule ip t c ip protocol tcp flow add @f; "+
		"nft add rule ip t c ct state established ct direction original drop")
	if a, text := n.traced(t, f); !strings.Contains(strings.Join(a.Rest.NotEvaluated, ""), "chain c, rule 1") {
		t.Errorf("a flowtable may take up the connection before the drop:\n%s", text())
	}
}

// connection opens a connection from the pinned port, which that pod answers. The test closes it.
func (n *nodeLab) connection(t *testing.T, f nodeFault, pod string) *netlab.Conn {
	t.Helper()
	h, _ := netlab.HostByName(f.from)
	to, _ := f.asked()
	c, err := n.Open(f.from, f.proto(), to, netlab.DialOptions{Local: netip.AddrPortFrom(h.Addr(f.six), f.port)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if got := c.First().Server; got != pod {
		t.Fatalf("%s answers, want %s", got, pod)
	}
	return c
}

// moved waits until new connections lead to pod4.
func (n *nodeLab) moved(t *testing.T, f nodeFault) {
	to, _ := f.asked()
	until(t, func() string {
		r, err := n.Dial("pod3", f.proto(), to, netlab.DialOptions{})
		if err == nil && r.Server == "pod4" {
			return ""
		}
		return fmt.Sprintf("%s answers, %v", r.Server, err)
	})
}

// insert gives conntrack the flow from the pinned port to pod2.
func (n *nodeLab) insert(t *testing.T, f nodeFault) {
	h, _ := netlab.HostByName(f.from)
	pod, _ := netlab.HostByName("pod2")
	to, _ := f.asked()
	from, is := h.Addr(f.six), pod.Addr(f.six)
	args := fmt.Sprintf("-I -p udp -s %[1]s -d %[2]s --sport %[3]d --dport %[4]d -r %[2]s -q %[1]s "+
		"--reply-port-src %[4]d --reply-port-dst %[3]d --dst-nat %[5]s -t 300 -u SEEN_REPLY,ASSURED",
		from, to.Addr(), f.port, to.Port(), netip.AddrPortFrom(is, 8080))
	until(t, func() string { // it fails while the proxy has not deleted the flow that was there
		out, err := n.Command(netlab.Node1, "conntrack", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("conntrack %s: %v: %s", args, err, out)
		}
		return ""
	})
}

// pinned wants trace to lead with the connection, and returns the command that deletes it.
func (n *nodeLab) pinned(t *testing.T, f nodeFault) (do string) {
	t.Helper()
	pod, _ := netlab.HostByName("pod2")
	for _, port := range []uint16{0, f.port} {
		f.port = port
		a, text := n.traced(t, f)
		if p := a.Rest.Pinned; len(p) != 1 || !a.Wrong() || p[0].From.Port() != pinnedPort ||
			p[0].Backend != netip.AddrPortFrom(pod.Addr(f.six), 8080) ||
			!strings.HasPrefix(text(), "node node1\nPINNED by conntrack: ") {
			t.Fatalf("from port %d:\n%s", port, text())
		}
		do = a.Rest.Pinned[0].Do
	}
	return do
}
