//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/debug/inspect"
	"kube-proxy/internal/netlab"
	"kube-proxy/trace"
)

// nodeFault is something on node1, done by a shell, that decides about packets.
type nodeFault struct {
	name     string
	do, undo string
	from     string // "pod1" if empty
	to       string // the Service of one backend, on pod2, if empty
	expect   trace.NodeVerdict
	by       string // a part of the culprit, or of what was not evaluated
	modes    string // "" for all
}

const (
	one  = "10.96.0.10:80" // pod2
	two  = "10.96.0.20:80" // pod2 and pod4
	sick = "10.96.0.30:80" // none
)

// nft is a rule in a chain of a table of its own.
func nft(family, hook, rule string) (do, undo string) {
	return fmt.Sprintf(`nft 'table %[1]s firewall { chain c { type filter hook %[2]s; %[3]s; }; }'`, family, hook, rule),
		fmt.Sprintf("nft delete table %s firewall", family)
}

// nodeFaults are faults with a rule of nftables.
func nftFaults() []nodeFault {
	var all []nodeFault
	for _, f := range []struct {
		name, family, hook, rule string
		from, to                 string
		expect                   trace.NodeVerdict
		by                       string
		modes                    string
	}{
		{"drop in forward", "inet", "forward priority 0", "ip daddr 10.1.1.12 drop", "", "", trace.Dropped, "table inet firewall, chain c, rule 1", ""},
		{"drop before forward", "ip", "forward priority -10", "tcp dport 8080 drop", "", "", trace.Dropped, "rule 1", ""},
		{"reject in forward", "inet", "forward priority 10", "tcp dport 8080 reject", "", "", trace.Rejected, "rule 1", ""},
		{"policy", "inet", "forward priority 0; policy drop", "ct state established accept; ip saddr 10.1.1.13 accept", "", "", trace.Dropped, "policy", ""},
		{"accepted under a policy", "inet", "forward priority 0; policy drop", "ct state established accept; ct status dnat accept", "", "", trace.Delivered, "", ""},
		{"the service's address, raw", "ip", "prerouting priority -300", "ip daddr 10.96.0.10 drop", "", "", trace.Dropped, "rule 1", ""},
		{"the service's address, after translation", "ip", "prerouting priority 0", "ip daddr 10.96.0.10 drop", "", "", trace.Delivered, "", ""},
		{"the reply alone", "inet", "forward priority 0", "ct direction reply tcp sport 8080 drop", "", "", trace.Dropped, "rule 1", ""},
		{"the reply alone, prerouting", "ip", "prerouting priority -200", "ip saddr 10.1.1.12 drop", "", "", trace.Dropped, "rule 1", ""},
		{"the reply alone, postrouting", "ip", "postrouting priority 300", "ip saddr 10.96.0.10 drop", "", "", trace.Dropped, "rule 1", ""},
		{"a stranger", "inet", "forward priority 0", "ip saddr 10.1.1.13 drop", "", "", trace.Delivered, "", ""},
		{"another port", "inet", "forward priority 0", "tcp dport 8081 drop", "", "", trace.Delivered, "", ""},
		{"a set", "inet", "forward priority 0", "ip daddr { 10.1.1.0/30, 10.1.1.12 } tcp dport { 80, 8000-8090 } drop", "", "", trace.Dropped, "rule 1", ""},
		{"an interface", "inet", "forward priority 0", `iifname "vethpod1" oifname "vethpod*" drop`, "", "", trace.Dropped, "rule 1", ""},
		{"another interface", "inet", "forward priority 0", `iifname "vethpod3" drop`, "", "", trace.Delivered, "", ""},
		{"postrouting", "ip", "postrouting priority 0", "oifname vethpod2 drop", "", "", trace.Dropped, "rule 1", ""},
		{"one backend", "inet", "forward priority 0", "ip daddr 10.1.2.14 drop", "", two, trace.Dropped, "rule 1", ""},
		{"one backend, rejected", "inet", "forward priority 0", "ip daddr 10.1.1.12 reject", "", two, trace.Rejected, "rule 1", ""},
		{"notrack", "ip", "prerouting priority -300", "ip daddr 10.96.0.10 notrack", "", "", trace.Dropped, "not translated", "nftables iptables"},
		{"output", "inet", "output priority 0", "ip daddr 10.1.1.12 drop", "node1", "", trace.Dropped, "rule 1", "nftables iptables"},
		{"output, the service's address", "inet", "output priority -200", "ip daddr 10.96.0.10 drop", "node1", "", trace.Dropped, "rule 1", ""},
		{"input does not matter", "inet", "input priority 0", "ip saddr 10.1.1.11 drop", "", "", trace.Delivered, "", "nftables iptables"},
		{"input of the reply", "inet", "input priority 0", "tcp sport 8080 drop", "node1", "", trace.Dropped, "rule 1", ""},
		{"a limit", "inet", "forward priority 0", "limit rate over 1000/second drop", "", "", trace.Undecided, "limit", ""},
		{"netdev", "netdev", "ingress device vethpod1 priority 0", "ip daddr 10.96.0.10 drop", "", "", trace.Dropped, "rule 1", ""},
		{"from outside", "inet", "prerouting priority -150", "iifname eth0 tcp dport 80 drop", "client", "", trace.Dropped, "rule 1", ""},
		{"no backend", "inet", "forward priority 0", "accept", "", sick, trace.Rejected, "", ""},
	} {
		do, undo := nft(f.family, f.hook, f.rule)
		all = append(all, nodeFault{f.name, do, undo, f.from, f.to, f.expect, f.by, f.modes})
	}
	return all
}

// otherFaults are those of other programs, and combinations.
func otherFaults() []nodeFault {
	iptables := func(rule string) (do, undo string) { return "iptables -I " + rule, "iptables -D " + rule }
	f := func(name, rule, from, to string, expect trace.NodeVerdict, by string) nodeFault {
		do, undo := iptables(rule)
		return nodeFault{name: name, do: do, undo: undo, from: from, to: to, expect: expect, by: by}
	}
	all := []nodeFault{
		f("iptables FORWARD", "FORWARD -p tcp --dport 8080 -j DROP", "", "", trace.Dropped, "FORWARD"),
		f("iptables reject", "FORWARD -d 10.1.1.12 -j REJECT", "", "", trace.Rejected, "FORWARD"),
		f("iptables multiport", "FORWARD -p tcp -m multiport --dports 80,8080 -j DROP", "", "", trace.Dropped, "FORWARD"),
		f("iptables, another pod", "FORWARD -d 10.1.1.13 -j DROP", "", "", trace.Delivered, ""),
		f("iptables, the reply", "FORWARD -m conntrack --ctstate ESTABLISHED --ctdir REPLY -j DROP", "", "", trace.Dropped, "FORWARD"),
		f("iptables, mark", "FORWARD -m mark --mark 0x77 -j DROP", "", "", trace.Delivered, ""),
		f("iptables OUTPUT", "OUTPUT -d 10.96.0.10 -j DROP", "node1", "", trace.Delivered, ""),
		{name: "iptables raw", do: "iptables -t raw -I PREROUTING -d 10.96.0.10 -j DROP", undo: "iptables -t raw -F PREROUTING", expect: trace.Dropped, by: "PREROUTING"},
		{name: "iptables limit", do: "iptables -I FORWARD -m limit --limit 1000/s --limit-burst 1000 -j DROP", undo: "iptables -D FORWARD -m limit --limit 1000/s --limit-burst 1000 -j DROP",
			from: "", expect: trace.Undecided, by: "limit"},
		{name: "ip_forward", do: "echo 0 >/proc/sys/net/ipv4/ip_forward", undo: "echo 1 >/proc/sys/net/ipv4/ip_forward", expect: trace.Dropped, by: "ip_forward=0"},
		{name: "blackhole", do: "ip route add blackhole 10.1.2.14/32", undo: "ip route del blackhole 10.1.2.14/32", to: two, expect: trace.Dropped, by: "blackhole"},
		{name: "a rule by mark", do: "ip route add prohibit default table 77; ip rule add fwmark 0x77 table 77 prio 5; " +
			`nft 'table ip firewall { chain c { type filter hook prerouting priority -150; ip saddr 10.1.1.11 meta mark set 0x77; }; }'`,
			undo: "nft delete table ip firewall; ip rule del prio 5; ip route flush table 77", expect: trace.Rejected, by: "prohibits"},
		{name: "nothing", do: "true", undo: "true", expect: trace.Delivered},
		{name: "nothing, from the node", do: "true", undo: "true", from: "node1", expect: trace.Delivered},
		{name: "nothing, from outside", do: "true", undo: "true", from: "client", expect: trace.Delivered},
		{name: "nothing, two backends", do: "true", undo: "true", to: two, expect: trace.Delivered},
	}
	return all
}

// TestTraceNode breaks a node on which the proxy serves, asks trace, and sends real packets: trace
// predicts what happens to them (NT-01, NT-04, NT-06, NT-08).
func TestTraceNode(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			n := newNodeLab(t)
			n.mode = mode
			n.Serve(netlab.TCP, 8080, "pod2", "pod4")
			n.service(labService{name: "one", ip: "10.96.0.10", endpoints: []netip.AddrPort{endpoint("pod2", 8080)}})
			n.service(labService{name: "two", ip: "10.96.0.20", endpoints: []netip.AddrPort{endpoint("pod2", 8080), endpoint("pod4", 8080)}})
			n.service(labService{name: "sick", ip: "10.96.0.30"})
			p := n.serve()
			defer p.stop()
			for _, f := range append(nftFaults(), otherFaults()...) {
				if f.modes == "" || strings.Contains(f.modes, mode) {
					t.Run(f.name, func(t *testing.T) { n.fault(t, f, mode) })
				}
			}
		})
	}
}

// fault breaks the node, compares trace with real packets, and repairs the node.
func (n *nodeLab) fault(t *testing.T, f nodeFault, mode string) {
	shell := func(command string) {
		t.Helper()
		if out, err := n.Command(netlab.Node1, "sh", "-ec", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	if f.from == "" {
		f.from = "pod1"
	}
	if f.to == "" {
		f.to = one
	}
	shell(f.do)
	defer shell(f.undo)
	if mode == "nftables" && strings.Contains("drop in forward, reject in forward, one backend, nothing", f.name) {
		n.expected(t, f)
	}
	a, text := n.traced(t, f.from, f.to)
	delivered, rejected, dropped := n.shoot(t, f.from, netip.MustParseAddrPort(f.to))
	rest := a.Rest
	if rest == nil {
		t.Fatalf("no answer of the node:\n%s", text)
	}
	if mode == "nftables" && (rest.Verdict != f.expect || !strings.Contains(rest.By+strings.Join(rest.NotEvaluated, " "), f.by)) {
		t.Errorf("%s by %q, want %s by %q:\n%s", rest.Verdict, rest.By, f.expect, f.by, text)
	}
	some := map[trace.NodeVerdict]bool{trace.Delivered: delivered > 0, trace.Rejected: rejected > 0, trace.Dropped: dropped > 0}
	switch all := rest.By != "" && rest.Share > 0.99; {
	case rest.Verdict == trace.Undecided && len(rest.NotEvaluated) > 0: // it says so
	case !some[rest.Verdict], all && delivered > 0, rest.Verdict == trace.Delivered && rejected+dropped > 0, !all && rest.By != "" && delivered == 0:
		t.Errorf("predicted %s (%.2f), but %d were delivered, %d rejected, %d dropped:\n%s", rest.Verdict, rest.Share, delivered, rejected, dropped, text)
	}
}

// expected asks trace whether the outcome is each of those that there are.
func (n *nodeLab) expected(t *testing.T, f nodeFault) {
	outcome := map[trace.NodeVerdict]string{trace.Delivered: "balance", trace.Dropped: "drop", trace.Rejected: "reject"}[f.expect]
	h, _ := netlab.HostByName(f.from)
	for _, expect := range []string{"balance", "drop", "reject", "pass"} {
		p := n.program("trace", h.V4.String(), f.to, "--expect", expect, "--admin-socket="+n.dir+"/admin.sock")
		<-p.done
		want := 2
		if expect == outcome {
			want = 0
		}
		if code := p.cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("--expect %s: exit code %d, want %d:\n%s", expect, code, want, p.log())
		}
	}
}

// traced asks trace about a packet of a host.
func (n *nodeLab) traced(t *testing.T, from, to string) (a inspect.TraceAnswer, text string) {
	t.Helper()
	h, _ := netlab.HostByName(from)
	ask := func(more ...string) string {
		p := n.program(append([]string{"trace", h.V4.String(), to, "--admin-socket=" + n.dir + "/admin.sock"}, more...)...)
		<-p.done
		return p.log()
	}
	text = ask("-o", "wide")
	raw := ask("-o", "json")
	if err := json.Unmarshal([]byte(raw), &a); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return a, text
}

// shoot opens connections until two backends must have been chosen, and counts their outcomes.
func (n *nodeLab) shoot(t *testing.T, from string, to netip.AddrPort) (delivered, rejected, dropped int) {
	t.Helper()
	shots := 1
	if to.String() == two {
		shots = 8
	}
	for i := 0; i < shots || shots > 1 && i < 40 && (delivered == 0 || delivered == i); i++ {
		_, err := n.Dial(from, netlab.TCP, to, netlab.DialOptions{Timeout: 300 * time.Millisecond})
		switch {
		case err == nil:
			delivered++
		case errors.Is(err, netlab.ErrTimeout):
			dropped++
		default:
			rejected++
		}
		if delivered > 0 && rejected+dropped > 0 {
			break
		}
	}
	return delivered, rejected, dropped
}
