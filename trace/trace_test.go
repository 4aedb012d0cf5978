package trace_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/cputest"
	"kube-proxy/test/tables"
	"kube-proxy/trace"
)

// shop is a table in which each question of the tests below has an answer.
const shop = `node nodeports 172.18.0.2/32,127.0.0.0/8 pods 10.1.0.0/16 services 10.96.0.0/12
10.96.0.10:80/tcp shop/web:http clusterip
  pods     balance shop/web:http/tcp/cluster
  anywhere balance shop/web:http/tcp/cluster masquerade
10.96.0.10:53/udp shop/web:dns clusterip
  anywhere balance shop/web:dns/udp/cluster
10.96.0.10:53/tcp shop/web:dns-tcp clusterip
  anywhere reject
10.96.0.11:80/tcp test/web clusterip
  anywhere drop
10.96.0.12:53/tcp test/mixed:dns clusterip
  anywhere drop
10.96.0.12:80/udp test/mixed:quic clusterip
  anywhere drop
192.0.2.7:80/tcp shop/web:http loadbalancer
  anywhere balance shop/web:http/tcp/cluster masquerade
nodeport:30080/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080
set shop/web:dns/udp/cluster
  10.1.1.11:5353
`

func table(t testing.TB, text string) *lb.Table {
	t.Helper()
	table, err := tables.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// What people write, and which packet or error it means.
func TestParseAndFind(t *testing.T) {
	tab := table(t, shop)
	for _, c := range []struct{ dst, want string }{
		{"10.96.0.10:80", "10.96.0.10:80/tcp"},
		{"10.96.0.10:80/udp", "10.96.0.10:80/udp"},
		{"10.96.0.10:80/UDP", "10.96.0.10:80/udp"},
		{"10.96.0.10:53", "10.96.0.10:53/tcp"}, // TCP first
		{"10.96.0.10:81", "10.96.0.10:81/tcp"}, // of no Service
		{"::ffff:10.96.0.10", "say which port"},
		{"10.96.0.11", "10.96.0.11:80/tcp"},
		{"10.96.0.10", "10.96.0.10 has the ports dns-tcp (53/tcp), dns (53/udp), http (80/tcp): say which port"},
		{"10.96.0.10/udp", "10.96.0.10:53/udp"},
		{"10.96.0.10/icmp", "10.96.0.10:0/1"},
		{"10.96.0.10:80/icmp", "a ping has no port"},
		{"10.99.0.10", "no Service has the address 10.99.0.10: say which port"},
		{"shop/web:http", "10.96.0.10:80/tcp"},
		{"shop/web:80", "10.96.0.10:80/tcp"},
		{"shop/web:53", "10.96.0.10:53/tcp"},
		{"shop/web:53/udp", "10.96.0.10:53/udp"},
		{"shop/web/udp", "10.96.0.10:53/udp"},
		{"shop/web/icmp", "10.96.0.10:0/1"},
		{"shop/web:81", "10.96.0.10:81/tcp"},
		{"shop/web:81/sctp", "10.96.0.10:81/sctp"},
		{"test/mixed:80", "10.96.0.12:80/udp"},
		{"shop/web:ftp", "has no such port: it has the ports"},
		{"shop/web", "say which port"},
		{"test/web", "10.96.0.11:80/tcp"},
		{"web.test", "10.96.0.11:80/tcp"},
		{"web.test.svc:80", "10.96.0.11:80/tcp"},
		{"web.test.svc.cluster.local:80/tcp", "10.96.0.11:80/tcp"},
		{"web.test.example.com", "neither an IP address nor the name"},
		{"shop/udp", "the Service shop/udp has no port"}, // a name, not a protocol
		{"shop/api:http", "run kube-proxy why shop/api"},
		{"shop/headless:80", "the Service shop/headless has no port"},
		{"nodeport:30080", "172.18.0.2:30080/tcp"},
		{"nodeport:30080/udp", "172.18.0.2:30080/udp"},
		{"nodeport", "want nodeport:PORT"},
		{"nodeport:http", "want a number from 1 to 65535"},
		{"", "it is empty"},
		{"10.96.0.300:80", "neither an IP address nor the name"},
		{"10.96.0.10:", "no port behind"},
		{"10.96.0.10:0", "want a number from 1 to 65535"},
		{"10.96.0.10:080", "want a number from 1 to 65535"},
		{"10.96.0.10:65536", "want a number from 1 to 65535"},
		{"10.96.0.10:http", "want a number from 1 to 65535"},
		{"10.96.0.10:80/gre", `protocol "gre": want tcp, udp, sctp or icmp`},
		{"10.96.0.10:80/", `protocol "": want`},
		{"[10.96.0.10]:80", "without brackets"},
		{"[fd00::1]:80", "different address families"},
		{"fd00::1:80", "different address families"}, // an address
		{"fd00::1%eth0", "has no zone"},
		{"[fd00::1", `"[" without "]"`},
		{"[fd00::1]80", `want ":PORT"`},
		{"[fd00::1]:", `want ":PORT"`},
		{"[fd00::1]", "different address families"},
		{"/web:80", "neither an IP address nor the name"},
		{"shop/:80", "neither an IP address nor the name"},
		{strings.Repeat("x", 63), "has no port at an address"},
		{strings.Repeat("x", 64), "neither an IP address nor the name"},
		{strings.Repeat("X", 80), strings.Repeat("X", 80) + `"`},
		{strings.Repeat("X", 81), strings.Repeat("X", 80) + `"…`},
		{strings.Repeat("x", 512), "neither an IP address nor the name"},
		{"a:b:c", `too many ":"`},
		{"shop/web\x1b[2J", "neither an IP address nor the name"},
		{"Shop/Web", "neither an IP address nor the name"},
		{"../../etc", `protocol "etc"`},
		{strings.Repeat("x", 600), "it has 600 bytes"},
	} {
		got := ""
		_, to, err := trace.Parse("10.1.1.11", c.dst)
		if err == nil {
			var at netip.AddrPort
			var proto lb.Proto
			at, proto, err = to.Find(tab, netip.MustParseAddr("172.18.0.2"))
			if err == nil {
				got = fmt.Sprintf("%s/%s", at, strings.TrimSuffix(strings.TrimPrefix(proto.String(), "Proto("), ")"))
			}
		}
		if err != nil {
			got = err.Error()
			if strings.ContainsAny(got, "\x1b\n") || len(got) > 300 {
				t.Errorf("%q: the error is no line for a terminal: %q", c.dst, got)
			}
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%q: %s, want %s", c.dst, got, c.want)
		}
	}
}

func TestParseSource(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"10.1.1.11", "10.1.1.11:0"}, {"10.1.1.11:40000", "10.1.1.11:40000"}, {"node", "node"},
		{"pod1", `"node" for this node`}, {"", "it is empty"}, {"10.1.1.11:x", "want a number"},
		{"fe80::1%eth0", "has no zone"},
	} {
		from, _, err := trace.Parse(c.src, "10.96.0.10:80")
		got := from.Addr.String()
		if from.Node {
			got = "node"
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q: %s, want %s", c.src, got, c.want)
		}
	}
	if from, _, err := trace.Parse("[fd00::1]:40000", "[fd00::2]:80"); err != nil ||
		from.Addr != ap("[fd00::1]:40000") {
		t.Errorf("%v, %v", from, err)
	}
}

// Whatever is typed, there is an answer or an error of one line, and what it means can be written
// down again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"10.96.0.10:80/tcp", "[fd00::1]:80", "shop/web:http/udp", "web.shop.svc",
		"nodeport:30080", "a/b/c/d", "[[::]]:1", "::ffff:1.2.3.4", "\x00/\x1b:1"} {
		f.Add("10.1.1.11", s)
		f.Add(s, "10.96.0.10:80")
	}
	tab := table(f, shop)
	f.Fuzz(func(t *testing.T, src, dst string) {
		from, to, err := trace.Parse(src, dst)
		if err != nil {
			if s := err.Error(); s == "" || strings.ContainsAny(s, "\n\x1b\x00") || len(s) > 1000 {
				t.Fatalf("%q %q: error %q", src, dst, s)
			}
			return
		}
		if !from.Node && !from.Addr.Addr().IsValid() || from.Addr.Addr().Zone() != "" {
			t.Fatalf("source %q is %+v", src, from)
		}
		kinds := 0
		for _, is := range []bool{to.Addr.IsValid(), to.Service != "", to.NodePort} {
			if is {
				kinds++
			}
		}
		if kinds != 1 || to.Port != 0 && to.PortName != "" || to.PortName != "" && to.Service == "" {
			t.Fatalf("destination %q is %+v", dst, to)
		}
		at, proto, err := to.Find(tab, netip.MustParseAddr("172.18.0.2"))
		if err != nil {
			return
		}
		p := trace.Packet{From: from.Addr, To: at, Proto: proto}
		a := trace.Ask(tab, trace.Mode{}, p)
		if len(a.Why) == 0 || (a.Verdict == trace.Balance) != (len(a.Backends) > 0) {
			t.Fatalf("%q %q: %+v", src, dst, a)
		}
		if proto == lb.TCP { // it means the same when it is written as the address that it is
			if _, again, err := trace.Parse("node", at.String()+"/tcp"); err != nil ||
				netip.AddrPortFrom(again.Addr, again.Port) != at {
				t.Fatalf("%q means %s, which means %+v, %v", dst, at, again, err)
			}
		}
	})
}

// The JSON of the issue, as it stands there.
func TestJSON(t *testing.T) {
	a := trace.Ask(table(t, shop), trace.Mode{}, trace.Packet{From: ap("10.1.1.9:0"), To: ap("10.96.0.10:80"),
		Proto: lb.TCP})
	a.Add(trace.Kernel{Verdict: trace.Drop, Way: []string{"policy drop"}})
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var is map[string]any
	if err := json.Unmarshal(text, &is); err != nil {
		t.Fatal(err)
	}
	backend := is["backends"].([]any)[0].(map[string]any)
	kernel := is["kernel"].(map[string]any)
	if is["service"] != "shop/web:http" || is["verdict"] != "balance" || is["masquerade"] != false ||
		len(is["why"].([]any)) == 0 ||
		backend["address"] != "10.1.1.11:8080" || backend["share"] != 0.5 || kernel["verdict"] != "drop" ||
		len(is["findings"].([]any)) != 1 {
		t.Errorf("%s", text)
	}
	// What is empty is an empty list, not null; and so is an answer without a Service.
	none, _ := json.Marshal(trace.Ask(table(t, shop), trace.Mode{}, trace.Packet{From: ap("10.1.1.9:0"),
		To: ap("192.0.2.99:80"), Proto: lb.TCP}))
	if !strings.HasPrefix(string(none), `{"service":"","verdict":"pass","backends":[],"masquerade":false,"why":["`) {
		t.Errorf("%s", none)
	}
	// A client reads it and says it as the server would.
	var read trace.Answer
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	p := trace.Packet{From: ap("10.1.1.9:0"), To: ap("10.96.0.10:80"), Proto: lb.TCP}
	if read.Text(p) != a.Text(p) {
		t.Errorf("read from JSON it says\n%s\nnot\n%s", read.Text(p), a.Text(p))
	}
}

// What modes make of it otherwise.
func TestModes(t *testing.T) {
	tab := table(t, shop)
	pod, out := ap("10.1.1.11:0"), ap("203.0.113.5:0")
	for _, c := range []struct {
		name string
		how  trace.Mode
		p    trace.Packet
		want trace.Verdict
		masq bool
	}{
		{"SV-62", trace.Mode{}, trace.Packet{From: pod, To: ap("10.96.0.10:81"), Proto: lb.TCP}, trace.Reject, false},
		{"SV-62 passes", trace.Mode{PassesUnknown: true}, trace.Packet{From: pod, To: ap("10.96.0.10:81"),
			Proto: lb.TCP}, trace.Pass, false},
		{"SV-62 load balancer's address", trace.Mode{}, trace.Packet{From: pod, To: ap("192.0.2.7:81"), Proto: lb.TCP},
			trace.Pass, false},
		{"PN-43 load balancer's address that the node has", trace.Mode{Holds: true},
			trace.Packet{From: pod, To: ap("192.0.2.7:81"), Proto: lb.TCP}, trace.Reject, false},
		{"SV-65 that the node has besides", trace.Mode{Holds: true}, trace.Packet{From: pod, To: ap("192.0.2.7:81"),
			Here: true, Proto: lb.TCP}, trace.Pass, false},
		{"SV-63", trace.Mode{}, trace.Packet{From: pod, To: ap("10.96.7.7:80"), Proto: lb.TCP}, trace.Drop, false},
		{"SV-63 passes", trace.Mode{PassesUnknown: true}, trace.Packet{From: pod, To: ap("10.96.7.7:80"),
			Proto: lb.TCP}, trace.Pass, false},
		{"SV-66", trace.Mode{}, trace.Packet{From: pod, To: ap("10.96.0.10:0"), Proto: trace.ICMPv4}, trace.Reject,
			false},
		{"SV-66 held", trace.Mode{Holds: true}, trace.Packet{From: pod, To: ap("10.96.0.10:0"), Proto: trace.ICMPv4},
			trace.Pass, false},
		{"drop", trace.Mode{}, trace.Packet{From: pod, To: ap("10.96.0.11:80"), Proto: lb.TCP}, trace.Drop, false},
		{"drop without a packet filter", trace.Mode{Unfiltered: true}, trace.Packet{From: pod, To: ap("10.96.0.11:80"),
			Proto: lb.TCP}, trace.Reject, false},
		{"SV-64", trace.Mode{}, trace.Packet{From: ap("127.0.0.1:0"), Host: true, To: ap("127.0.0.1:30080"), Here: true,
			Proto: lb.TCP}, trace.Pass, false},
		{"SV-64 localhost", trace.Mode{Loopback: true}, trace.Packet{From: ap("127.0.0.1:0"), Host: true,
			To: ap("127.0.0.1:30080"), Here: true, Proto: lb.TCP}, trace.Balance, true},
		{"SV-64 sockets", trace.Mode{LocalhostProxy: true, LocalhostSockets: true}, trace.Packet{
			From: ap("127.0.0.1:0"), Host: true, To: ap("127.0.0.1:30080"), Here: true, Proto: lb.TCP},
			trace.Balance, true},
		{"SV-64 sockets of others", trace.Mode{LocalhostProxy: true, LocalhostSockets: true}, trace.Packet{
			From: out, To: ap("127.0.0.1:30080"), Here: true, Proto: lb.TCP}, trace.Reject, false},
		{"NodePort", trace.Mode{}, trace.Packet{From: out, To: ap("172.18.0.2:30080"), Here: true, Proto: lb.TCP},
			trace.Balance, true},
		{"NodePort on another machine", trace.Mode{}, trace.Packet{From: out, To: ap("172.18.0.2:30080"),
			Proto: lb.TCP}, trace.Pass, false},
		{"NodePort at an address that was not chosen", trace.Mode{}, trace.Packet{From: out, To: ap("172.18.9.9:30080"),
			Here: true, Proto: lb.TCP}, trace.Pass, false},
		{"SV-56", trace.Mode{}, trace.Packet{From: pod, To: ap("10.96.0.10:80"), Proto: lb.TCP}, trace.Balance, false},
		{"a proxy in between", trace.Mode{Terminates: true}, trace.Packet{From: pod, To: ap("10.96.0.10:80"),
			Proto: lb.TCP}, trace.Balance, true},
	} {
		if a := trace.Ask(tab, c.how, c.p); a.Verdict != c.want || a.Masquerade != c.masq {
			t.Errorf("%s: %s, masquerade %t, want %s, %t: %v", c.name, a.Verdict, a.Masquerade, c.want, c.masq, a.Why)
		}
	}
	// TN-66: an API server's address is not held.
	tab.Node.APIServers = []netip.Addr{netip.MustParseAddr("192.0.2.7")}
	if a := trace.Ask(tab, trace.Mode{Holds: true}, trace.Packet{From: pod, To: ap("192.0.2.7:81"),
		Proto: lb.TCP}); a.Verdict != trace.Pass {
		t.Errorf("an API server's address: %s: %v", a.Verdict, a.Why)
	}
	// SV-60: the client is a backend.
	p := trace.Packet{From: pod, To: ap("10.96.0.10:53"), Proto: lb.UDP}
	if a := trace.Ask(tab, trace.Mode{}, p); !a.Backends[0].Hairpin {
		t.Errorf("%+v", a)
	}
	if a := trace.Ask(tab, trace.Mode{HairpinsByNode: true}, p); a.Backends[0].Hairpin {
		t.Errorf("no reason says that it is on this node: %+v", a)
	}
	// TN-68: the API does not say where it runs.
	at := lb.Key{Addr: p.To.Addr(), Port: p.To.Port(), Proto: p.Proto}
	places := lb.BackendsOf(lb.Backend{Addr: tab.Get(at).Set(lb.Cluster).Backends.At(0).Addr, Unplaced: true})
	placed := tab.Get(at).Set(lb.Cluster).Backends
	tab.Get(at).Set(lb.Cluster).Backends = places
	if a := trace.Ask(tab, trace.Mode{HairpinsByNode: true}, p); !a.Backends[0].Hairpin {
		t.Errorf("no reason says where it is: %+v", a)
	}
	tab.Get(at).Set(lb.Cluster).Backends = placed
	// Another Service does, of the same address, port and protocol.
	set := *tab.Get(lb.Key{Addr: p.To.Addr(), Port: p.To.Port(), Proto: p.Proto}).Set(lb.Cluster)
	other := set
	other.ID.Service, other.Backends = "shop/other",
		lb.BackendsOf(lb.Backend{Addr: set.Backends.At(0).Addr, Local: true})
	key := lb.Key{Addr: netip.MustParseAddr("10.96.0.99"), Port: 53, Proto: p.Proto}
	tab.Replace(lb.Owner{Name: "shop/other"}, []*lb.Frontend{{Key: key, Service: "shop/other", Kind: lb.ClusterIP,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: &other}}}})
	if a := trace.Ask(tab, trace.Mode{HairpinsByNode: true}, p); !a.Backends[0].Hairpin {
		t.Errorf("another Service says that it is on this node: %+v", a)
	}
}

// SV-15, SV-16, SV-61: the answer names the configured ranges. The address itself is none of them;
// it is allowed where the node is within them.
func TestSources(t *testing.T) {
	for _, c := range []struct{ sources, from, says string }{
		{"172.18.0.2/32,192.0.2.53/32", "172.18.0.2", "only 172.18.0.2/32, and 172.18.0.2 is among them."},
		{"172.18.0.2/32,192.0.2.53/32", "192.0.2.53",
			"only 172.18.0.2/32, and the address itself: 192.0.2.53 is that address."},
		{"172.18.0.2/32,192.0.2.53/32", "192.0.2.54",
			"only 172.18.0.2/32, and the address itself: 192.0.2.54 is neither."},
		{"192.0.2.53/32,203.0.113.0/24", "192.0.2.54",
			"only 203.0.113.0/24, and the address itself: 192.0.2.54 is neither."},
		{"192.0.2.53/32", "192.0.2.53", "only 192.0.2.53/32, and 192.0.2.53 is among them."},
		{"203.0.113.0/24", "192.0.2.53", "only 203.0.113.0/24, and 192.0.2.53 is in none of them."},
	} {
		tab := table(t, "192.0.2.53:53/udp lab/dns:p loadbalancer sources "+c.sources+"\n"+
			"  anywhere balance lab/dns:p/udp/cluster\n"+
			"set lab/dns:p/udp/cluster\n  10.1.1.11:5353\n")
		a := trace.Ask(tab, trace.Mode{}, trace.Packet{From: ap(c.from + ":0"), To: ap("192.0.2.53:53"), Proto: lb.UDP})
		why := strings.Join(a.Why, "\n")
		if !strings.Contains(why, "loadBalancerSourceRanges allows "+c.says) ||
			(a.Verdict == trace.Balance) != !regexp.MustCompile("neither|none").MatchString(c.says) {
			t.Errorf("from %s: %s: %s\nwant %s", c.from, a.Verdict, why, c.says)
		}
	}
}

// The interface of packets decides whether they are of pods.
func TestInterfaces(t *testing.T) {
	rows := strings.SplitN(shop, "\n", 2)[1]
	p := trace.Packet{From: ap("192.168.7.7:0"), To: ap("10.96.0.10:80"), Proto: lb.TCP}
	for _, c := range []struct{ node, in, route string }{
		{"pods interface br0", "br0", "pods"}, {"pods interface br0", "br01", "anywhere"},
		{"pods interface br0", "", "anywhere"},
		{"pods interfaces veth*", "veth12", "pods"}, {"pods interfaces veth*", "eth0", "anywhere"},
	} {
		tab := table(t, rows)
		name := strings.TrimSuffix(c.node[strings.LastIndex(c.node, " ")+1:], "*")
		if strings.HasSuffix(c.node, "*") {
			tab.Node.Pods = lb.Detector{InterfacePrefix: name}
		} else {
			tab.Node.Pods = lb.Detector{Interface: name}
		}
		p.In = c.in
		a := trace.Ask(tab, trace.Mode{}, p)
		if a.Route != c.route {
			t.Errorf("%s, through %q: route %s, want %s", c.node, c.in, a.Route, c.route)
		}
		if unsaid := strings.Contains(strings.Join(a.Why, " "), "Without --in"); unsaid != (c.in == "") {
			t.Errorf("%s, through %q: %v", c.node, c.in, a.Why)
		}
	}
}

// The finding, in words.
func TestCompare(t *testing.T) {
	a := trace.Ask(table(t, shop), trace.Mode{}, trace.Packet{From: ap("10.1.1.9:0"), To: ap("10.96.0.10:80"),
		Proto: lb.TCP})
	b := func(addr string, share float64) trace.Backend { return trace.Backend{Address: ap(addr), Share: share} }
	one, two := b("10.1.1.11:8080", 0.5), b("10.1.2.14:8080", 0.5)
	var crowd []trace.Backend
	for i := range 100 {
		crowd = append(crowd, b(fmt.Sprintf("10.2.0.%d:80", i), 0.01))
	}
	for _, c := range []struct {
		k    trace.Kernel
		want string
	}{
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{two, one}}, ""},
		// shares are not told
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{b("10.1.1.11:8080", 0),
			b("10.1.2.14:8080", 0)}}, ""},
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{one, two}, Affine: one.Address}, ""},
		{trace.Kernel{Verdict: trace.Drop}, "By the table the packet is to balance, by the kernel's state it is to " +
			"drop."},
		{trace.Kernel{Verdict: trace.Pass}, "by the kernel's state it is to pass."},
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{one}},
			"The table has the backend 10.1.2.14:8080, and the kernel has it not."},
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{one, two, b("10.1.1.12:80", 0)}},
			"The kernel has the backend 10.1.1.12:80, and the table has it not."},
		{trace.Kernel{Verdict: trace.Balance, Backends: append(crowd, one, two)},
			"10.2.0.4:80 and 95 others, and the table has them not."},
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{b("10.1.1.11:8080", 0.9),
			b("10.1.2.14:8080", 0.1)}}, "gets 0.900 of new connections in the kernel, and 0.500 by the table."},
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{one, two}, Masquerade: true},
			"By the table the packet is not masqueraded, by the kernel's state it is masqueraded."},
		{trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{one, two}, Affine: ap("10.9.9.9:80")},
			"The kernel keeps this client with 10.9.9.9:80, which is no backend by the table."},
	} {
		got := strings.Join(trace.Compare(a, c.k), "\n")
		if got != c.want && (c.want == "" || !strings.Contains(got, c.want)) {
			t.Errorf("%+v: %q, want %q", c.k, got, c.want)
		}
	}
	// What is on the way out rejects what no Service has any more; it must not reject what one
	// has.
	gone := trace.Ask(table(t, shop), trace.Mode{}, trace.Packet{From: ap("10.1.1.9:0"), To: ap("172.18.0.22:30080"),
		Proto: lb.TCP})
	drains := trace.Kernel{Verdict: trace.Reject, Drains: true}
	if got := trace.Compare(gone, drains); gone.Verdict != trace.Pass || got != nil {
		t.Errorf("%s, %q", gone.Verdict, got)
	}
	if got := trace.Compare(a, drains); got == nil {
		t.Error("a Service that is there is rejected, without a reason")
	}
	// A backend that is its own client is masqueraded, which is no finding.
	self := trace.Ask(table(t, shop), trace.Mode{}, trace.Packet{From: ap("10.1.1.11:0"), To: ap("10.96.0.10:80"),
		Proto: lb.TCP})
	if got := trace.Compare(self, trace.Kernel{Verdict: trace.Balance, Backends: []trace.Backend{one, two},
		Masquerade: true}); got != nil {
		t.Errorf("%q", got)
	}
	if got := trace.Compare(trace.Answer{Verdict: trace.Reject}, trace.Kernel{Verdict: trace.Reject,
		Way: []string{"reject"}}); got != nil {
		t.Errorf("%q", got)
	}
}

// Names of tenants do nothing to a terminal, and an answer fits on one.
func TestText(t *testing.T) {
	evil := "a\x1b]0;owned\a\n\u202e/<script>"
	k := lb.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: lb.TCP}
	var backends []lb.Backend
	for i := range 5000 {
		backends = append(backends,
			lb.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)})
	}
	var tab lb.Table
	for i := range 1000 {
		name := fmt.Sprint("ns/s", i)
		set := &lb.BackendSet{ID: lb.SetID{Service: name, Proto: lb.TCP, Scope: lb.Cluster},
			Backends: lb.BackendsOf(backends[4990:]...)}
		if i == 0 {
			set.Backends = lb.BackendsOf(backends...)
		}
		tab.Replace(lb.Owner{Name: name, Created: int64(i)}, []*lb.Frontend{{Key: k, Service: name, Kind: lb.ExternalIP,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}})
	}
	p := trace.Packet{From: ap("10.1.1.9:0"), In: evil, To: ap("10.96.0.10:80"), Proto: lb.TCP}
	a := trace.Ask(&tab, trace.Mode{}, p)
	a.Service, a.Why = evil, append(a.Why, evil) // lb.Check would not take it
	a.Add(trace.Kernel{Verdict: trace.Balance, Way: slices.Repeat([]string{"rule " + evil}, 500)})
	text := a.Lead() + a.Text(p)
	if strings.ContainsAny(text, "\x1b\a\u202e") || !strings.Contains(text, `\x1b]0;owned\a\n\u202e/<script>`) {
		t.Errorf("%q", text)
	}
	if n := strings.Count(text, "\n"); n > 48 {
		t.Errorf("%d lines:\n%s", n, text)
	}
	if wide := a.Wide(p); strings.Count(wide, "\n") < 5500 || strings.ContainsAny(wide, "\x1b\a\u202e") {
		t.Errorf("wide: %d lines", strings.Count(wide, "\n"))
	}
	for _, want := range []string{"So do 994 other Services", "and 4992 others", "and 488 lines",
		"THE KERNEL DIFFERS"} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

// BenchmarkAsk is a question to tables of many Services: about one of them, about a port that
// no Service has, an address without a Service, and a contested key.
func BenchmarkAsk(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		tab := crowded(n)
		for name, to := range map[string]string{"row": "10.96.0.5:80", "port": "10.96.0.5:81",
			"address": "10.111.255.255:80", "contested": "192.0.2.7:80"} {
			p := trace.Packet{From: ap("10.1.1.11:0"), To: ap(to), Proto: lb.TCP}
			b.Run(fmt.Sprintf("services=%d/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					trace.Ask(tab, trace.Mode{}, p)
				}
			})
		}
	}
}

// crowded is a table of n Services that claim the same external IP.
func crowded(n int) *lb.Table {
	tab := &lb.Table{Node: lb.Node{ServiceCIDRs: prefixes("10.96.0.0/12"),
		Pods: lb.Detector{Prefixes: prefixes("10.1.0.0/16")}}}
	for i := range n {
		name := fmt.Sprintf("ns/web-%d", i)
		set := &lb.BackendSet{ID: lb.SetID{Service: name, Proto: lb.TCP, Scope: lb.Cluster},
			Backends: lb.BackendsOf(lb.Backend{Addr: ap("10.1.1.12:8080")}, lb.Backend{Addr: ap("10.1.1.13:8080")})}
		to := []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}
		tab.Replace(lb.Owner{Name: name, Created: int64(i)}, []*lb.Frontend{
			{Key: lb.Key{Addr: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), Port: 80,
				Proto: lb.TCP}, Service: name, Kind: lb.ClusterIP, Routes: to},
			{Key: lb.Key{Addr: netip.AddrFrom4([4]byte{192, 0, 2, 7}), Port: 80, Proto: lb.TCP}, Service: name,
				Kind: lb.ExternalIP, Routes: to},
		})
	}
	return tab
}

// A question costs as much in a table of 2,000 Services as in one of twenty, if all claim
// the key of the query.
func TestAskDoesNotGrow(t *testing.T) {
	small, large := crowded(20), crowded(2000)
	for _, to := range []string{"10.96.0.5:80", "10.96.0.5:81", "10.111.255.255:80", "192.0.2.7:80"} {
		p := trace.Packet{From: ap("10.1.1.11:0"), To: ap(to), Proto: lb.TCP}
		ask := func(tab *lb.Table) func() {
			return func() {
				for range 100 {
					trace.Ask(tab, trace.Mode{}, p)
				}
			}
		}
		if ratio := cputest.Ratio(ask(small), ask(large)); ratio > 20 {
			t.Errorf("%s: a question costs %.0f times as much in a table of a hundred times as many Services", to,
				ratio)
		}
	}
}
