package trace_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/golden"
	"kube-proxy/trace"
)

// town has a frontend for each sentence of an answer.
const town = `node nodeports 127.0.0.0/8,172.18.0.2/32 localhost 127.0.0.1 pods 10.1.0.0/16 services 10.96.0.0/12
10.96.0.10:80/tcp shop/web:http clusterip affinity 10800s
  pods     balance shop/web:http/tcp/cluster
  anywhere balance shop/web:http/tcp/cluster masquerade
10.96.0.11:80/tcp shop/none clusterip
  anywhere reject
10.96.0.12:80/tcp shop/local clusterip
  anywhere drop
192.0.2.7:80/tcp shop/web:http loadbalancer sources 203.0.113.0/24,172.18.0.2/32
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local
192.0.2.7:80/tcp blog/a externalip created 5 loses to shop/web
  anywhere reject
192.0.2.8:80/tcp shop/local loadbalancer
  anywhere drop
192.0.2.9:80/tcp shop/web:http loadbalancer
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere drop
172.18.0.2:30082/tcp shop/odd:x externalip
  anywhere balance shop/odd:x/tcp/cluster
172.18.0.2:30083/tcp shop/odd:x externalip
  anywhere balance shop/odd:x/tcp/cluster
10.96.5.5:80/tcp shop/odd:x externalip
  anywhere balance shop/odd:x/tcp/cluster
172.18.0.2:30084/tcp shop/odd:x externalip
  anywhere balance shop/odd:x/tcp/cluster
nodeport:30080/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
nodeport:30080/udp shop/web:dns nodeport
  anywhere balance shop/web:dns/udp/cluster masquerade
nodeport:30081/tcp shop/local nodeport
  anywhere drop
nodeport:30082/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
nodeport:30083/tcp shop/local nodeport
  anywhere drop
nodeport:32100/tcp shop/web healthcheck endpoints 2
  anywhere accept
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080
set shop/web:http/tcp/local
  10.1.1.11:8080 local
set shop/web:dns/udp/cluster
  10.1.1.11:5353 local
  10.1.2.14:8080 local
set shop/odd:x/tcp/cluster
  10.1.1.12:80 draining
  10.1.1.13:80 draining
`

// The whole answers, as an operator reads them, and the fields that only JSON has: each case of the
// path of a packet.
func TestAnswers(t *testing.T) {
	const pod, backend, node, outside = "10.1.1.9:0", "10.1.1.11:0", "172.18.0.2:0", "203.0.113.5:0"
	plain, holds := trace.Mode{Name: "iptables"}, trace.Mode{Name: "ipvs", Holds: true}
	passes := trace.Mode{Name: "userspace", PassesUnknown: true}
	proxy := trace.Mode{Name: "ebpf", LocalhostProxy: true}
	served := func(_ lb.Node, f *lb.Frontend, p trace.Packet) (*lb.Frontend, string) {
		switch {
		case f.Key.Port == 30081, f.Key == lb.Key{Port: 30083, Proto: lb.TCP}:
			return nil, "Its NodePort is occupied."
		case f.Key.Addr == ap(node).Addr():
			return nil, "It is the node's address."
		case p.From == ap(outside):
			return f, "The rule for other clients applies."
		}
		return f, ""
	}
	unfiltered := trace.Mode{Name: "userspace", Unfiltered: true}
	windows := trace.Mode{Name: "kernelspace", Served: served, Unfiltered: true}
	host := func(from, to string) trace.Packet {
		return trace.Packet{From: ap(from), To: ap(to), Host: true, Here: true}
	}
	here := func(from, to string) trace.Packet { return trace.Packet{From: ap(from), To: ap(to), Here: true} }
	to := func(from, to string) trace.Packet { return trace.Packet{From: ap(from), To: ap(to)} }
	ping := func(p trace.Packet) trace.Packet { p.Proto = trace.ICMPv4; return p }
	udp := func(p trace.Packet) trace.Packet { p.Proto = lb.UDP; return p }
	const unselected = "the proxy on localhost, which is not selected"
	var out strings.Builder
	for _, c := range []struct {
		name string
		how  trace.Mode
		p    trace.Packet
	}{
		{"a pod to a cluster IP", plain, to(pod, "10.96.0.10:80")},
		{"a backend to itself", plain, to(backend, "10.96.0.10:80")},
		{"another client to a cluster IP", plain, to(outside, "10.96.0.10:80")},
		{"a proxy in between", trace.Mode{Name: "userspace", Terminates: true}, to(pod, "10.96.0.10:80")},
		{"no endpoints", plain, to(pod, "10.96.0.11:80")},
		{"no endpoints on this node, internal traffic policy", plain, to(pod, "10.96.0.12:80")},
		{"no endpoints on this node, external traffic policy", plain, to(outside, "192.0.2.8:80")},
		{"no endpoints on this node, without a packet filter", unfiltered, to(pod, "10.96.0.12:80")},
		{"no endpoints for these clients, without a packet filter", unfiltered, to(outside, "192.0.2.9:80")},
		{"an unused address of the service network, without a packet filter", unfiltered, to(pod, "10.96.7.7:80")},
		{"a backend on another node to itself", trace.Mode{Name: "ebpf", HairpinsByNode: true},
			to("10.1.2.14:0", "10.96.0.10:80")},
		{"no endpoints on this node in a mode that decides by client", windows, to(outside, "192.0.2.8:80")},
		{"a load balancer's address from outside", plain, to(outside, "192.0.2.7:80")},
		{"a load balancer's address from the node", plain, host(node, "192.0.2.7:80")},
		{"a client outside the source ranges", plain, to(pod, "192.0.2.7:80")},
		{"a provisional owner, endpoints that drain", plain, to(outside, "10.96.5.5:80")},
		{"a NodePort", plain, here(outside, "172.18.0.2:30080")},
		{"a NodePort at another address", plain, here(outside, "172.18.9.9:30080")},
		{"a NodePort on loopback", plain, host("127.0.0.1:0", "127.0.0.1:30080")},
		{"a NodePort without endpoints on this node", plain, here(outside, "172.18.0.2:30081")},
		{"a NodePort that the mode does not serve", windows, here(pod, "172.18.0.2:30081")},
		{"an external IP before a NodePort", plain, here(outside, "172.18.0.2:30082")},
		{"a NodePort where the mode does not serve the external IP", windows, here(outside, "172.18.0.2:30082")},
		{"neither the external IP nor the NodePort is served", windows, here(pod, "172.18.0.2:30083")},
		{"an external IP that is not served, without a NodePort", windows, here(pod, "172.18.0.2:30084")},
		{"a NodePort at any address", windows, here(outside, "172.18.9.9:30080")},
		{"a health check", plain, here(outside, "172.18.0.2:32100")},
		{"a health check in a mode that does not serve all", windows, here(outside, "172.18.0.2:32100")},
		{"the proxy on localhost", proxy, host("127.0.0.1:0", "127.0.0.1:30080")},
		{"the proxy on localhost, UDP", proxy, udp(host("127.0.0.1:0", "127.0.0.1:30080"))},
		{"the proxy on localhost, without endpoints", proxy, host("127.0.0.1:0", "127.0.0.1:30081")},
		{"an address of no Service", plain, to(pod, "198.51.100.1:80")},
		{"a cluster IP's other port", plain, to(pod, "10.96.0.10:81")},
		{"a cluster IP's other port, held", holds, to(pod, "10.96.0.10:81")},
		{"a cluster IP's other port, in a mode without such rules", passes, to(pod, "10.96.0.10:81")},
		{"a ping to a cluster IP", plain, ping(to(pod, "10.96.0.10:0"))},
		{"a ping to a cluster IP, held", holds, ping(to(pod, "10.96.0.10:0"))},
		{"an unused address of the service network", plain, to(pod, "10.96.7.7:80")},
		{"a load balancer's other port", plain, to(pod, "192.0.2.8:81")},
		{"a load balancer's other port at the node's address", plain, here(pod, "192.0.2.8:81")},
		{"a load balancer's other port, held", holds, to(pod, "192.0.2.8:81")},
		{unselected, proxy, host("127.0.0.1:0", "127.0.0.1:30080")},
	} {
		if c.p.Proto == 0 {
			c.p.Proto = lb.TCP
		}
		tab := table(t, town)
		if c.name == unselected {
			tab.Node.Localhost = netip.Addr{}
		}
		a := trace.Ask(tab, c.how, c.p)
		fmt.Fprintf(&out, "-- %s --\n%s", c.name, a.Text(c.p))
		if a.Decides != "" {
			fmt.Fprintf(&out, "decides: %s\n", a.Decides)
		}
		if a.AffinitySeconds > 0 {
			fmt.Fprintf(&out, "affinity: %d s\n", a.AffinitySeconds)
		}
		if a.SourceRanges != nil {
			fmt.Fprintf(&out, "source ranges: %v\n", a.SourceRanges)
		}
		if a.NodePorts != nil {
			fmt.Fprintf(&out, "addresses of NodePorts: %v\n", a.NodePorts)
		}
		if (a.Decides == "") != (a.Verdict == trace.Balance) {
			t.Errorf("%s: %s is decided by %q", c.name, a.Verdict, a.Decides)
		}
	}
	p := to(pod, "10.96.0.10:80")
	p.Proto = lb.TCP
	for _, c := range []struct {
		name string
		k    trace.Kernel
	}{
		{"the kernel agrees", trace.Kernel{Verdict: trace.Balance, Affine: ap("10.1.1.11:8080"),
			Backends: []trace.Backend{{Address: ap("10.1.1.11:8080")}, {Address: ap("10.1.2.14:8080")}},
			Way:      []string{"chain services", "chain service-1"}}},
		{"the kernel differs", trace.Kernel{Verdict: trace.Drop, Way: slices.Repeat([]string{"chain x"}, 13)}},
	} {
		a := trace.Ask(table(t, town), plain, p)
		a.Add(c.k)
		fmt.Fprintf(&out, "-- %s --\n%s%s", c.name, a.Lead(), a.Text(p))
	}
	golden.Equal(t, "testdata/answers.txt", out.String())
}

// What the rest of the node does, and what was seen of a real packet, as an operator reads them.
func TestNodeAndLiveTexts(t *testing.T) {
	const drop = `table inet fw, chain in, rule 3 "drop"`
	pinned := trace.Pinned{From: ap("10.1.1.9:4000"), To: ap("10.96.0.10:53"), Backend: ap("10.1.1.77:5353"),
		Proto: "udp", Do: "conntrack -D -p udp"}
	var out strings.Builder
	for _, c := range []struct {
		name string
		node *trace.Node
	}{
		{"nothing is known", nil},
		{"delivered", &trace.Node{Verdict: trace.Delivered, Steps: []trace.Step{{Stage: "route", Text: "via eth0"},
			{Stage: "forward", Text: "accept"}, {Stage: "forward", Text: "accept"},
			{Reply: true, Stage: "route", Text: "via cni0"}}}},
		{"dropped", &trace.Node{Verdict: trace.Dropped, By: drop, Stage: "forward", Share: 1, Do: "delete the rule"}},
		{"dropped for some", &trace.Node{Verdict: trace.Dropped, By: drop, Stage: "forward", Share: 0.5,
			Backends: []netip.AddrPort{ap("10.1.1.11:80"), ap("10.1.1.12:80")}}},
		{"dropped for a quarter", &trace.Node{Verdict: trace.Dropped, By: drop, Stage: "forward", Share: 0.25}},
		{"by kube-proxy's own rule", &trace.Node{Verdict: trace.Rejected, By: "chain reject", Own: true, Share: 1}},
		{"by a stale rule of kube-proxy", &trace.Node{Verdict: trace.Rejected, By: "chain old (of kube-proxy)",
			Stage: "forward", Share: 1}},
		{"undecided", &trace.Node{Verdict: trace.Undecided, NotEvaluated: []string{"a", "b", "c", "d", "e"}}},
		{"undecided, little is unknown", &trace.Node{Verdict: trace.Undecided, NotEvaluated: []string{"a"}}},
		{"dropped, and something is unknown", &trace.Node{Verdict: trace.Dropped, By: drop, Stage: "forward", Share: 1,
			NotEvaluated: []string{"a"}}},
		{"pinned", &trace.Node{Verdict: trace.Delivered, Pinned: []trace.Pinned{pinned}}},
	} {
		fmt.Fprintf(&out, "-- %s --\n%s", c.name, c.node.Lead())
		if c.node != nil {
			out.WriteString(c.node.Text(false))
		}
	}
	from, to, backend := ap("10.1.1.9:4000"), ap("10.96.0.10:80"), ap("10.1.1.11:8080")
	for _, c := range []struct {
		name string
		live trace.Live
	}{
		{"no packet", trace.Live{Verdict: trace.Undecided}},
		{"a client's, answered", trace.Live{Seen: true, From: from, To: to, Backend: backend, Verdict: trace.Delivered,
			Answered: true, Steps: []string{"rule 1", "rule 2"}, Notes: []string{"some steps were lost"}}},
		{"its own, without an answer", trace.Live{Seen: true, Sent: true, From: from, To: to, Backend: backend,
			Verdict: trace.Delivered}},
		{"dropped by a rule", trace.Live{Seen: true, Sent: true, From: from, To: to, Verdict: trace.Dropped,
			By: "table inet fw, chain in", Handle: 7, Differs: "predicted delivered"}},
		{"dropped by a policy", trace.Live{Seen: true, From: from, To: to, Verdict: trace.Dropped,
			By: "table inet fw, chain in"}},
		{"lost", trace.Live{Seen: true, From: from, To: to, Verdict: trace.Dropped, Lost: "behind postrouting"}},
	} {
		fmt.Fprintf(&out, "-- live: %s --\n%s", c.name, c.live.Text(false))
		if wide := strings.TrimPrefix(c.live.Text(true), c.live.Text(false)); wide != "" {
			fmt.Fprintf(&out, "wide:\n%s", wide)
		}
	}
	golden.Equal(t, "testdata/node.txt", out.String())
}
