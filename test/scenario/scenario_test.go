package scenario

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

func TestParsePacket(t *testing.T) {
	dual := Addrs{V4: netip.MustParseAddr("192.0.2.9"), V6: netip.MustParseAddr("2001:db8::9")}
	same := Origin{Host: "same"}
	for line, want := range map[string]Packet{
		"v4 pod3 -> 192.0.2.9:80 : pod1 from same or refused": {
			Family: lb.IPv4, From: "pod3", To: Target{Addr: Addrs{V4: netip.MustParseAddr("192.0.2.9")}, Port: "80"},
			Want: Outcome{Or: Refused, Backends: []Backend{{Host: "pod1", From: same}}},
		},
		"pod1 -> shop/web:http : pod2 from same": {
			From: "pod1", To: Target{Addr: Addrs{Of: "shop/web"}, Port: "http"},
			Want: Outcome{Backends: []Backend{{Host: "pod2", From: same}}},
		},
		"v6 client -> lb(shop/web):80/udp : dropped": {
			Family: lb.IPv6, From: "client",
			To:   Target{Addr: Addrs{Of: "shop/web", Kind: LoadBalancerAddr}, Port: "80", Proto: lb.UDP},
			Want: Outcome{Verdict: Dropped},
		},
		"node1 as ext(shop/web) -> nodeport(shop/web):http@node2 : refused": {
			From: "node1", As: Addrs{Of: "shop/web", Kind: ExternalAddr},
			To:   Target{Addr: Addrs{Of: "shop/web", Kind: NodePortAddr}, Port: "http", AtHost: "node2"},
			Want: Outcome{Verdict: Refused},
		},
		"pod1 -> nodeport(a/b):*@192.0.2.9|2001:db8::9 : refused": {
			From: "pod1", To: Target{Addr: Addrs{Of: "a/b", Kind: NodePortAddr}, Port: "*", At: dual},
			Want: Outcome{Verdict: Refused},
		},
		"v4 pod1 -> 192.0.2.9|[2001:db8::9]:53/sctp : pod1:8081, pod2 from " +
			"node1, pod3, pod4 from 192.0.2.9|2001:db8::9": {
			Family: lb.IPv4, From: "pod1", To: Target{Addr: dual, Port: "53", Proto: lb.SCTP},
			Want: Outcome{Backends: []Backend{
				{Host: "pod1", Port: 8081, From: Origin{Host: "node1"}}, {Host: "pod2", From: Origin{Host: "node1"}},
				{Host: "pod3", From: Origin{Addr: dual}}, {Host: "pod4", From: Origin{Addr: dual}},
			}},
		},
		"pod1 -> 192.0.2.9|2001:db8::9/icmp : refused": {
			From: "pod1", To: Target{Addr: dual, ICMP: true}, Want: Outcome{Verdict: Refused},
		},
		"open a1: pod1 -> shop/web:http : one of pod1, pod2 sticky": {
			Verb: Open, Conn: "a1", From: "pod1", To: Target{Addr: Addrs{Of: "shop/web"}, Port: "http"},
			Want: Outcome{Sticky: true, Backends: []Backend{{Host: "pod1"}, {Host: "pod2"}}},
		},
		"begin a1: pod1 -> shop/web:http : dropped": {
			Verb: Begin, Conn: "a1", From: "pod1", To: Target{Addr: Addrs{Of: "shop/web"}, Port: "http"},
			Want: Outcome{Verdict: Dropped},
		},
		"pod1 -> shop/web:http : pod1, pod2 evenly": {
			From: "pod1", To: Target{Addr: Addrs{Of: "shop/web"}, Port: "http"},
			Want: Outcome{Evenly: true, Backends: []Backend{{Host: "pod1"}, {Host: "pod2"}}},
		},
		"a1 keeps working": {Verb: KeepsWorking, Conn: "a1"},
		"a1 is dead":       {Verb: IsDead, Conn: "a1"},
		"a1 reaches pod4":  {Verb: Reaches, Conn: "a1", Want: Outcome{Backends: []Backend{{Host: "pod4"}}}},
		"a1 moves to pod4": {Verb: MovesTo, Conn: "a1", Want: Outcome{Backends: []Backend{{Host: "pod4"}}}},
		"then":             {Verb: Then},
		"wait 1.2s":        {Verb: Then, Wait: 1200 * time.Millisecond},
	} {
		got, err := parsePacket(line)
		want.Text = line
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", line, got, err, want)
		}
	}
}

func TestParsePacketErrors(t *testing.T) {
	for line, want := range map[string]string{
		"pod1 shop/web:http : pod1":                       "want SOURCE -> TARGET : OUTCOME",
		"pod1 -> shop/web:http pod1":                      "want SOURCE -> TARGET : OUTCOME",
		"pod9 -> shop/web:http : pod1":                    `host "pod9"`,
		"pod1 -> shop/web : pod1":                         "want ADDRESS:PORT",
		"pod1 -> shop/web: : pod1":                        "no port",
		"pod1 -> web:http : pod1":                         `address "web"`,
		"pod1 -> vip(shop/web):http : pod1":               "want ext(…), lb(…) or nodeport(…)",
		"pod1 -> lb(web):http : pod1":                     "NAMESPACE/NAME",
		"pod1 -> shop/web:http/icmp6 : pod1":              "want tcp, udp or sctp",
		"pod1 -> 192.0.2.9:http : pod1":                   "needs a port number",
		"pod1 -> 192.0.2.9|192.0.2.8:80 : pod1":           "more than one of a family",
		"pod1 -> lb(shop/web):http@node1 : pod1":          "@ is for NodePorts",
		"pod1 -> shop/web:http : one of pod1, pod2":       "go together",
		"pod1 -> shop/web:http : pod1, pod2 sticky":       "go together",
		"pod1 -> shop/web:http : pod1 evenly or refused":  `"pod1 evenly or refused"`,
		"pod1 -> shop/web:http : pod1 or refused evenly":  "go with neither",
		"open a: pod1 -> shop/web:http : pod1 or dropped": "only a connection that is answered",
		"pod1 -> shop/web:http : lost":                    `host "lost"`,
		"pod1 -> shop/web:http : pod1:x":                  "port",
		"pod1 -> shop/web:http : pod1 from nowhere":       "want same, a host or an address",
		"begin a: pod1 -> shop/web:http : pod1":           "only a connection that is dropped at first",
		"begin pod1 -> shop/web:http : dropped":           "want begin NAME",
		"open A: pod1 -> shop/web:http : pod1":            "want open NAME",
		"open a: pod1 -> shop/web:http : refused":         "only a connection that is answered",
		"wait 11s":  "at most 10s",
		"wait soon": "want a time",
		"node1 as shop/ -> shop/web:http : pod1 from same": "NAMESPACE/NAME",
	} {
		if _, err := parsePacket(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", line, err, want)
		}
	}
}

const small = `A story.

Rows: SV-11

-- cluster.yaml --
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
`

// Errors name file and line, and all of them are reported.
func TestParseErrors(t *testing.T) {
	text := strings.Replace(small, "SV-11", "SV-11, X5", 1) + `-- settings --
masquerade-all: perhaps
colour: blue

nodeport-addresses: 1.2.3.4
-- packets --
# a comment
pod1 -> shop/web:http : pod1
pod1 -> nowhere
b reaches pod1
a keeps working
-- step Two/packets --
-- step two/colour --
-- step two/delete --
Pod shop/web
Service web
Node a/b c
-- packets --
-- restart --
-- step two/restart --
now
`
	_, err := Parse("s.txtar", []byte(text), "")
	want := []string{
		`s.txtar:3: row "X5"`,
		`s.txtar:13: setting masquerade-all: `,
		`s.txtar:14: setting colour: unknown`,
		`s.txtar:16: setting nodeport-addresses: `,
		`s.txtar:20: "pod1 -> nowhere"`,
		`s.txtar:21: connection "b" was not begun before`,
		`s.txtar:22: connection "a" was not opened before`,
		`s.txtar:23: section "step Two/packets"`,
		`s.txtar:24: section "step two/colour" is unknown`,
		`s.txtar:26: delete "Pod shop/web"`,
		`s.txtar:27: delete "Service web"`,
		`s.txtar:28: delete "Node a/b c"`,
		`s.txtar:29: section "packets" stands here twice`,
		`s.txtar:30: section "restart": only a step`,
		`s.txtar:31: section "step two/restart": only a step`,
	}
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no error %q in:\n%v", w, err)
		}
	}
	for text, want := range map[string]string{
		"\nRows: SV-11\n-- cluster.yaml --\n": "no story",
		"Story.\n-- cluster.yaml --\n":        "no line \"Rows:",
		"Story.\nRows: SV-11\n":               "no section cluster.yaml",
	} {
		if _, err := Parse("s.txtar", []byte(text), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

func TestSettings(t *testing.T) {
	s, err := Parse("s.txtar", []byte(small+`-- settings --
node: n2
masquerade-all: true
detect-local-mode: BridgeInterface
pod-bridge-interface: cbr0
cluster-cidr:
nodeport-addresses: 172.18.0.0/24, fd00:18::/64
node-holds: 192.0.2.1/32
host-ports: 8091=10.1.1.11:8081, 8091=[fd00:10:1:1::11]:8081
`), "")
	if err != nil {
		t.Fatal(err)
	}
	prefixes := []netip.Prefix{netip.MustParsePrefix("172.18.0.0/24"), netip.MustParsePrefix("fd00:18::/64")}
	want := Settings{
		NodeName: "n2",
		Policy: policy.Settings{
			MasqueradeAll: true, DetectLocal: policy.BridgeInterface, PodInterface: "cbr0",
			NodePortAddrs: policy.NodePortAddrs{Prefixes: prefixes},
		},
		NodeHolds: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
		HostPorts: []HostPort{
			{8091, netip.MustParseAddrPort("10.1.1.11:8081")},
			{8091, netip.MustParseAddrPort("[fd00:10:1:1::11]:8081")},
		},
	}
	if !reflect.DeepEqual(s.Settings, want) {
		t.Errorf("got %+v\nwant %+v", s.Settings, want)
	}
	if got := s.Settings.For(lb.IPv6); got.Family != lb.IPv6 || !got.MasqueradeAll {
		t.Errorf("for IPv6: %+v", got)
	}
}

// A label that selects another proxy deletes the object (SV-01); a faulty object leaves the
// previous one.
func TestEventsOfChanges(t *testing.T) {
	yaml := small[strings.Index(small, "apiVersion"):]
	labelled := strings.Replace(yaml, "name: web", "name: web, labels: {service.kubernetes.io/service-proxy-name: x}",
		1)
	faulty := strings.Replace(yaml, "port: 80", "port: 99999", 1)
	name := cluster.Name{Namespace: "shop", Name: "web"}

	events, _, err := Change{YAML: labelled}.Events()
	if err != nil || !reflect.DeepEqual(events, []cluster.Event{cluster.ServiceGone{Name: name}}) {
		t.Errorf("labelled: %v, %v", events, err)
	}
	events, problems, err := Change{YAML: faulty}.Events()
	if err != nil || len(events) != 0 || len(problems) == 0 {
		t.Errorf("faulty: %v, %v, %v", events, problems, err)
	}
	if _, _, err := (Change{YAML: "kind: Pod\nmetadata: {name: x}\n"}).Events(); err == nil {
		t.Error("a Pod gave no error")
	}
}

// A stretched replay has longer affinities and is otherwise unchanged.
func TestStretch(t *testing.T) {
	sticky := strings.Replace(small, "spec:", "spec:\n  sessionAffinity: ClientIP\n  sessionAffinityConfig: "+
		"{clientIP: {timeoutSeconds: 2}}", 1) + `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.1.11]}]
`
	s, err := Parse("s.txtar", []byte(sticky), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 4} {
		r := s.Replay(lb.IPv4)
		r.Stretch(n)
		step, _, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		rows := step.Table.Sorted()
		if len(rows) == 0 {
			t.Fatal("no rows")
		}
		for _, f := range rows {
			if want := time.Duration(2*n) * time.Second; f.Affinity != want {
				t.Errorf("stretched by %d: affinity %v, want %v", n, f.Affinity, want)
			}
		}
	}
}

// Resolve finds mistyped Services and ports, which would otherwise never be sent.
func TestResolveErrors(t *testing.T) {
	s, err := Parse("s.txtar", []byte(small+`-- packets --
pod1 -> shop/wbe:http : pod1
pod1 -> shop/web:htpt : pod1
pod1 -> nodeport(shop/web):http : pod1
pod1 as lb(shop/x) -> shop/web:http : pod1
`), "")
	if err != nil {
		t.Fatal(err)
	}
	r := s.Replay(lb.IPv4)
	step, ok, err := r.Next()
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, p := range step.State.Packets {
		if shots, err := r.Resolve(p, netlab.Addr); err == nil {
			t.Errorf("%s: %v, no error", p.Text, shots)
		}
	}
	if _, ok, err := r.Next(); ok || err != nil {
		t.Errorf("after the last state: %v, %v", ok, err)
	}
}

func TestFold(t *testing.T) {
	a, b := &lb.Frontend{Service: "a"}, &lb.Frontend{Service: "b"}
	one, two := lb.Key{Port: 1}, lb.Key{Port: 2}
	got := Fold([]lb.Change{{Key: one, Old: a}, {Key: two, New: b}, {Key: one, New: b}, {Key: two, Old: b}})
	if want := []lb.Change{{Key: one, Old: a, New: b}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// packetRows returns the rows of docs/behaviour.md that packets can show. Other tests prove those
// of health check ports, of updates that change nothing, and of the latency metric.
func packetRows() []string {
	var out []string
	for _, r := range [][2]int{{10, 20}, {22, 22}, {24, 24}, {30, 34}, {36, 41}, {50, 67}} {
		for i := r[0]; i <= r[1]; i++ {
			out = append(out, fmt.Sprintf("SV-%02d", i))
		}
	}
	return out
}

func TestEveryRowHasAScenario(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range packetRows() {
		if !slices.ContainsFunc(all, func(s *Scenario) bool { return slices.Contains(s.Rows, row) }) {
			t.Errorf("no scenario proves %s", row)
		}
	}
}
