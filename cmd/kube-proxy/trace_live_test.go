//go:build linux

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/netlab"
	"kube-proxy/trace"
)

// TestTraceLive follows real packets by the kernel's own trace, with and without faults: the kernel
// reports the predicted path, or the answer starts with the difference (NT-10).
func TestTraceLive(t *testing.T) {
	n := newTraceLab(t, "nftables")
	p := n.serve()
	defer p.stop()
	drop := func(hook, rule string) (do, undo string) { return nft("inet", hook, rule) }
	for _, f := range []struct {
		nodeFault
		hook, rule string
		lost       string
	}{
		{nodeFault: nodeFault{name: "nothing", from: "pod1", expect: trace.Delivered}},
		{nodeFault: nodeFault{name: "nothing, from the node", from: "node1", expect: trace.Delivered}},
		{nodeFault: nodeFault{name: "nothing, from outside", from: "client", expect: trace.Delivered}},
		{nodeFault: nodeFault{name: "nothing, IPv6", from: "pod1", six: true, expect: trace.Delivered}},
		{nodeFault: nodeFault{name: "nothing, UDP", from: "pod1", udp: true, expect: trace.Delivered}},
		{nodeFault: nodeFault{name: "forward, IPv6, UDP", from: "pod1", six: true, udp: true, expect: trace.Dropped,
			by: "table inet firewall, chain c"}, hook: "forward priority 0", rule: "udp dport 8080 drop"},
		{nodeFault: nodeFault{name: "the reply", from: "pod1", expect: trace.Dropped,
			by: "table inet firewall, chain c"}, hook: "forward priority 0", rule: "tcp sport 8080 drop"},
		{nodeFault: nodeFault{name: "policy", from: "pod1", expect: trace.Dropped, by: "table inet firewall, chain c"},
			hook: "forward priority 0; policy drop", rule: "ip saddr 10.1.1.13 accept"},
		{nodeFault: nodeFault{name: "raw, of the node", from: "node1", expect: trace.Dropped,
			by: "table inet firewall, chain c"}, hook: "output priority -300", rule: "ip daddr 10.96.0.10 drop"},
		{nodeFault: nodeFault{name: "reject, of the node", from: "node1", expect: trace.Rejected,
			by: "table inet firewall, chain c"}, hook: "output priority 10", rule: "tcp dport 8080 reject"},
		{nodeFault: nodeFault{name: "ip_forward", from: "pod1", expect: trace.Dropped,
			do:   "echo 0 >/proc/sys/net/ipv4/ip_forward",
			undo: "echo 1 >/proc/sys/net/ipv4/ip_forward"}, lost: "packet last seen at prerouting"},
	} {
		t.Run(f.name, func(t *testing.T) {
			if f.rule != "" {
				f.do, f.undo = drop(f.hook, f.rule)
			}
			if f.do != "" {
				n.shell(t, f.do)
				defer n.shell(t, f.undo)
			}
			stop := make(chan struct{})
			defer close(stop)
			if f.from != netlab.Node1 {
				go n.knock(f.nodeFault, stop)
			}
			a, _ := n.traced(t, f.nodeFault, "--live=2s")
			l := a.Live
			switch {
			case l == nil:
				t.Fatal("no packet was followed")
			case !l.Seen || l.Verdict != f.expect || !strings.HasPrefix(l.By, f.by) || (l.By == "") != (f.by == "") ||
				!strings.Contains(l.Lost, f.lost) || l.Differs != "" || l.Sent != (f.from == netlab.Node1),
				f.expect == trace.Delivered && (!l.Answered || l.Backend.Port() != 8080 || l.From.Port() == 0):
				t.Errorf("want %s by %q, lost %q:\n%+v\n%s", f.expect, f.by, f.lost, l, l.Text(true))
			}
			n.withoutLive(t)
		})
	}
	t.Run("nothing comes", func(t *testing.T) {
		a, _ := n.traced(t, nodeFault{from: "pod3"}, "--live")
		if a.Live == nil || a.Live.Seen || a.Live.Verdict != trace.Undecided || a.Wrong() {
			t.Errorf("%+v", a.Live)
		}
	})
	for result, rule := range map[string]string{"silent": "drop", "refuses": "reject with tcp reset"} {
		t.Run(result+" in the pod", func(t *testing.T) {
			fault := filter("pod2", "tcp dport 8080 "+rule)
			fault.begin(&failoverLab{nodeLab: n})
			defer fault.end(&failoverLab{nodeLab: n})
			a, _ := n.traced(t, nodeFault{from: netlab.Node1}, "--live")
			if a.Live == nil || a.Probes == nil || len(a.Probes.Failed()) != 2 || a.Probes.Probes[0].Result != result {
				t.Errorf("live %+v, probes %+v; want two that are %s", a.Live, a.Probes, result)
			}
		})
	}
	t.Run("killed", n.killedLive)
}

// knock sends packets of a host until stop.
func (n *nodeLab) knock(f nodeFault, stop chan struct{}) {
	to, _ := f.asked()
	for {
		// The trace reports the result.
		_, _ = n.Dial(f.from, f.proto(), to, netlab.DialOptions{Timeout: 200 * time.Millisecond})
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

const liveTable = "table ip kube-proxy-trace"

func (n *nodeLab) tables(t *testing.T) string {
	t.Helper()
	out, err := n.Command(netlab.Node1, "nft", "list", "tables").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (n *nodeLab) withoutLive(t *testing.T) {
	t.Helper()
	if all := n.tables(t); strings.Contains(all, "kube-proxy-trace") {
		t.Errorf("the table is left:\n%s", all)
	}
}

// killedLive kills the command: the kernel removes its table. Only one runs at a time.
func (n *nodeLab) killedLive(t *testing.T) {
	p := n.program("trace", "10.1.1.13", one, "--admin-socket="+n.dir+"/admin.sock", "--live=30s")
	until(t, func() string {
		if strings.Contains(n.tables(t), liveTable) {
			return ""
		}
		return "no table"
	})
	if code, says := n.query("trace", "10.1.1.13", one, "--live=30s"); code != 1 ||
		!strings.Contains(says, "another trace --live") {
		t.Errorf("a second one ends with %d: %s", code, says)
	}
	p.end(syscall.SIGKILL)
	until(t, func() string {
		if strings.Contains(n.tables(t), liveTable) {
			return "the table is left after kill -9"
		}
		return ""
	})
}

// TestLiveDiffers starts with the facts that the prediction missed (NT-10).
func TestLiveDiffers(t *testing.T) {
	for _, c := range []struct {
		name    string
		node    trace.Node
		live    trace.Live
		differs string
		outcome trace.Verdict
	}{
		{"missed", trace.Node{Verdict: trace.Delivered},
			trace.Live{Seen: true, Verdict: trace.Dropped, By: "table ip x, chain c", Handle: 7},
			"predicted delivered, but it was dropped by table ip x, chain c, rule with handle 7", trace.Drop},
		{"another rule", trace.Node{Verdict: trace.Dropped, By: "table ip y, chain c, rule 1", Share: 1},
			trace.Live{Seen: true, Verdict: trace.Dropped, By: "table ip x, chain c"}, "policy", trace.Drop},
		{"passed", trace.Node{Verdict: trace.Dropped, By: "table ip y, chain c, rule 1", Share: 1},
			trace.Live{Seen: true, Verdict: trace.Delivered, Answered: true}, "but it was delivered", trace.Balance},
		{"one backend of two", trace.Node{Verdict: trace.Dropped, By: "table ip y, chain c, rule 1", Share: 0.5},
			trace.Live{Seen: true, Verdict: trace.Delivered, Answered: true}, "", trace.Balance},
		{"none came", trace.Node{Verdict: trace.Dropped, By: "z", Share: 1},
			trace.Live{Verdict: trace.Undecided}, "", trace.Drop},
		{"hostile", trace.Node{Verdict: trace.Delivered},
			trace.Live{Seen: true, Verdict: trace.Dropped, By: "\x1b[31m", Steps: []string{"\x1b]0;x\a"}},
			"\x1b", trace.Drop},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.live.Compare(&c.node)
			a := inspect.TraceAnswer{Rest: &c.node, Live: &c.live, Answer: trace.Answer{Verdict: trace.Balance}}
			if !strings.Contains(c.live.Differs, c.differs) || (c.live.Differs == "") != (c.differs == "") ||
				a.Outcome() != c.outcome {
				t.Errorf("differs %q, outcome %s", c.live.Differs, a.Outcome())
			}
			if text := fmt.Sprint(c.live.Text(true)); strings.ContainsAny(text, "\x1b\a") {
				t.Errorf("%q", text)
			}
		})
	}
}
