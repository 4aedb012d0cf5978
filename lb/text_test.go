package lb_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
)

const shopTable = `node nodeports 172.18.0.2/32 pods 10.1.0.0/16 services 10.96.0.0/12
nodeport:30080/tcp shop/web:http nodeport
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local
nodeport:32100/tcp shop/web healthcheck endpoints 2
  anywhere accept
nodeport:32100/tcp shop/young healthcheck endpoints 0 created 1763719200 loses to shop/web
  anywhere accept
10.96.0.7:80/tcp shop/web:http clusterip affinity 10800s
  anywhere balance shop/web:http/tcp/cluster
192.0.2.7:80/tcp shop/web:http loadbalancer affinity 10800s sources 10.0.0.0/8,192.0.2.7/32 preserve destination
  pods     balance shop/web:http/tcp/cluster
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere drop
192.0.2.7:80/tcp blog/web externalip created 1763719200 loses to shop/web
  anywhere reject
192.0.2.7:53/udp shop/web:dns loadbalancer
  anywhere drop
  serving  shop/web:dns/udp/serving
set shop/web:dns/udp/serving
  10.1.2.14:5353
  10.1.2.15:5353
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080 draining
  10.1.2.15:8080
set shop/web:http/tcp/local
  10.1.1.11:8080 local draining
`

func TestTableText(t *testing.T) {
	// In the text 53/udp comes first, since keys are sorted by port.
	rows := strings.SplitAfter(shopTable, "\n")
	i := slices.Index(rows, "192.0.2.7:53/udp shop/web:dns loadbalancer\n")
	j := slices.Index(rows, "192.0.2.7:80/tcp shop/web:http loadbalancer affinity 10800s sources 10.0.0.0/8,192.0.2.7/32 preserve destination\n")
	want := strings.Join(slices.Concat(rows[:j], rows[i:i+3], rows[j:i], rows[i+3:]), "")

	table := mustParse(t, shopTable)
	if got := table.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got := mustParse(t, want).String(); got != want {
		t.Errorf("parsed and printed again:\n%s\nwant:\n%s", got, want)
	}
	if n := table.Len(); n != 5 {
		t.Errorf("%d keys, want 5", n)
	}
	if health := table.Get(mustKey(t, "nodeport:32100/tcp")); health.Kind != lb.HealthCheck || health.LocalEndpoints != 2 || !health.Accepts() {
		t.Errorf("wrong row:\n%s", health)
	}
	row := table.Get(mustKey(t, "192.0.2.7:80/tcp"))
	if row.Affinity != 3*time.Hour || row.Kind != lb.LoadBalancer || len(row.Sources) != 2 || !row.PreserveDestination {
		t.Errorf("wrong row:\n%s", row)
	}
	if row.Set(lb.Cluster) != table.Get(mustKey(t, "10.96.0.7:80/tcp")).Set(lb.Cluster) {
		t.Error("rows of one service do not share their set")
	}
	dns := table.Get(mustKey(t, "192.0.2.7:53/udp"))
	if s := dns.Serving; s == nil || s.Backends.Len() != 2 || dns.Set(lb.Serving) != nil || row.Serving != nil {
		t.Errorf("wrong row:\n%s", dns)
	}
}

func TestFrontendText(t *testing.T) {
	row := mustParse(t, shopTable).Get(mustKey(t, "nodeport:30080/tcp"))
	want := `nodeport:30080/tcp shop/web:http nodeport
  host     balance shop/web:http/tcp/cluster masquerade
  anywhere balance shop/web:http/tcp/local
set shop/web:http/tcp/cluster
  10.1.1.11:8080 local
  10.1.2.14:8080 draining
  10.1.2.15:8080
set shop/web:http/tcp/local
  10.1.1.11:8080 local draining
`
	if got := row.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if again := mustParse(t, want).Get(row.Key); !again.Equal(row) {
		t.Errorf("the row's text reads back as\n%s", again)
	}
	if got := (*lb.Frontend)(nil).String(); got != "none\n" {
		t.Errorf("a nil row prints %q", got)
	}
}

func TestParseTableErrors(t *testing.T) {
	const set = "set a/b/tcp/cluster\n  10.0.0.1:80\n"
	for _, test := range []struct{ name, text, want string }{
		{"bad key", "10.0.0.1/tcp a/b clusterip", `line 1: key "10.0.0.1/tcp"`},
		{"bad kind", "10.0.0.1:80/tcp a/b vip", `unknown kind "vip"`},
		{"short row", "10.0.0.1:80/tcp a/b", "want KEY SERVICE KIND"},
		{"nodeport with address", "10.0.0.1:80/tcp a/b nodeport", "does not go with this key"},
		{"address without nodeport", "nodeport:80/tcp a/b clusterip", "does not go with this key"},
		{"no routes", "10.0.0.1:80/tcp a/b clusterip", "the last route is not from anywhere"},
		{"last route for pods", "10.0.0.1:80/tcp a/b clusterip\n  pods drop", "the last route is not from anywhere"},
		{"routes out of order", "10.0.0.1:80/tcp a/b clusterip\n  host drop\n  pods drop", "line 3: a route from pods cannot follow one from host"},
		{"route twice", "10.0.0.1:80/tcp a/b clusterip\n  anywhere drop\n  anywhere drop", "line 3"},
		{"unknown action", "10.0.0.1:80/tcp a/b clusterip\n  anywhere wink", `unknown action "wink"`},
		{"cluster IP that accepts", "10.0.0.1:80/tcp a/b clusterip\n  anywhere accept", "line 2: route anywhere accept: not for kind clusterip"},
		{"NodePort that accepts", "nodeport:80/tcp a/b nodeport\n  anywhere accept", "line 2: route anywhere accept: not for kind nodeport"},
		{"health check that drops", "nodeport:80/tcp a/b healthcheck\n  anywhere drop", "line 2: route anywhere drop: not for kind healthcheck"},
		{"health check for pods", "nodeport:80/tcp a/b healthcheck\n  pods accept", "line 2: route pods accept: not for kind healthcheck"},
		{"health check without route", "nodeport:80/tcp a/b healthcheck", "kind healthcheck does not fit the routes"},
		{"health check with address", "10.0.0.1:80/tcp a/b healthcheck", "does not go with this key"},
		{"health check over UDP", "nodeport:80/udp a/b healthcheck", "does not go with this key"},
		{"health check with affinity", "nodeport:80/tcp a/b healthcheck affinity 10s", "affinity: not for kind healthcheck"},
		{"health check with sources", "nodeport:80/tcp a/b healthcheck sources 10.0.0.0/8", "sources: not for kind healthcheck"},
		{"cluster IP that preserves", "10.0.0.1:80/tcp a/b clusterip preserve destination", "preserve: not for kind clusterip"},
		{"preserves something else", "10.0.0.1:80/tcp a/b externalip preserve source", "want: preserve destination"},
		{"endpoints of a NodePort", "nodeport:80/tcp a/b nodeport endpoints 0", "endpoints: not for kind nodeport"},
		{"endpoints below zero", "nodeport:80/tcp a/b healthcheck endpoints -1", "endpoints: "},
		{"no action", "10.0.0.1:80/tcp a/b clusterip\n  anywhere", "want an action"},
		{"unknown source", "10.0.0.1:80/tcp a/b clusterip\n  moon drop", `unknown source "moon"`},
		{"balance without set", "10.0.0.1:80/tcp a/b clusterip\n  anywhere balance", "want a set"},
		{"drop with masquerade", "10.0.0.1:80/tcp a/b clusterip\n  anywhere drop masquerade", "unknown word masquerade"},
		{"unknown set", "10.0.0.1:80/tcp a/b clusterip\n  anywhere balance a/b/tcp/local\n", "there is no set a/b/tcp/local"},
		{"unused set", set, "line 1: no row uses set a/b/tcp/cluster"},
		{"set twice", set + set, "line 3: a second set"},
		{"empty set", "set a/b/tcp/cluster", "has no backend"},
		{"bad set", "set a/b/tcp/space", `unknown scope "space"`},
		{"bad set protocol", "set a/b/icmp/local", `protocol "icmp"`},
		{"set without service", "set tcp/local", "want SERVICE/PROTOCOL/SCOPE"},
		{"backend twice", set + "  10.0.0.1:80 local\n", "has 10.0.0.1:80 twice"},
		{"bad backend", set + "  10.0.0.2\n", "line 3: backend"},
		{"backend with unknown word", set + "  10.0.0.2:80 lokal\n", "unknown word lokal"},
		{"indented first line", "  10.0.0.2:80", "must follow a row or a set"},
		{"serving of TCP", "10.0.0.1:80/tcp a/b clusterip\n  anywhere drop\n  serving a/b/tcp/serving\n", "line 3: serving: not for tcp"},
		{"serving without set", "10.0.0.1:80/udp a/b clusterip\n  anywhere drop\n  serving\n", "line 3: serving: want a set"},
		{"serving twice", "10.0.0.1:80/udp a/b clusterip\n  anywhere drop\n  serving a/b/udp/serving\n  serving a/b/udp/serving\n", "line 4: serving: a second time"},
		{"serving of another scope", "10.0.0.1:80/udp a/b clusterip\n  anywhere drop\n  serving a/b/udp/local\n", "is of another scope"},
		{"serving of a bad set", "10.0.0.1:80/udp a/b clusterip\n  anywhere drop\n  serving a/b\n", "want SERVICE/PROTOCOL/SCOPE"},
		{"unknown serving set", "10.0.0.1:80/udp a/b clusterip\n  anywhere drop\n  serving a/b/udp/serving\n", "there is no set a/b/udp/serving"},
		{"balance over what serves", "10.0.0.1:80/udp a/b clusterip\n  anywhere balance a/b/udp/serving\nset a/b/udp/serving\n  10.0.0.2:80\n", "line 2: balance: no route goes to"},
		{"serving set with marks", "set a/b/udp/serving\n  10.0.0.2:80 draining\n", "line 2: backend 10.0.0.2:80: a set of scope serving tells addresses only"},
		{"affinity too long", "10.0.0.1:80/tcp a/b clusterip affinity 86401s", "whole seconds from 1s to 86400s"},
		{"affinity of half a second", "10.0.0.1:80/tcp a/b clusterip affinity 1500ms", "whole seconds"},
		{"affinity without value", "10.0.0.1:80/tcp a/b clusterip affinity", "affinity needs a value"},
		{"unmasked source", "10.0.0.1:80/tcp a/b clusterip sources 10.0.0.1/8", "want 10.0.0.0/8"},
		{"overlapping sources", "10.0.0.1:80/tcp a/b clusterip sources 10.0.0.0/8,10.1.0.0/16", "overlap"},
		{"unknown attribute", "10.0.0.1:80/tcp a/b clusterip weight 3", "unknown word weight"},
		{"loses from", "10.0.0.1:80/tcp a/b clusterip loses from a/c", "want: loses to"},
		{"loses but wins", "10.0.0.1:80/tcp a/b clusterip loses to a/c\n  anywhere drop", "the winner is a/b"},
		{"loses to itself", "10.0.0.1:80/tcp a/b clusterip loses to a/b\n  anywhere drop", "cannot lose to itself"},
		{"silent loser", "10.0.0.1:80/tcp a/b clusterip\n  anywhere drop\n10.0.0.1:80/tcp a/c clusterip\n  anywhere drop", "line 3: 10.0.0.1:80/tcp: a/c loses to a/b, so the line must say so"},
		{"one owner twice", "10.0.0.1:80/tcp a/b clusterip\n  anywhere drop\n10.0.0.1:80/tcp a/b clusterip\n  anywhere drop", "claims the key twice"},
		{"two ages", "10.0.0.1:80/tcp a/b clusterip\n  anywhere drop\n10.0.0.1:81/tcp a/b clusterip created 3\n  anywhere drop", "another creation time"},
		{"two nodes", "node\nnode", "line 2: a second node"},
		{"node word", "node weight 3", "node: weight: unknown word"},
		{"node word without value", "node pods", "node: pods needs a value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			table, err := lb.ParseTable(test.text)
			if err == nil {
				t.Fatalf("no error, but the table\n%s", table)
			}
			if !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "table: line ") {
				t.Errorf("error %q, want one that contains %q", err, test.want)
			}
		})
	}
}

// FuzzTable shows that any text is refused or reads as a table whose text reads as the same table, and that
// a random table survives the way through its text.
func FuzzTable(f *testing.F) {
	f.Add(shopTable, uint64(1))
	f.Add("# a comment\n\nnode pods-interface cbr0 nodeports ::/0\n[2001:db8::7]:80/sctp a/b externalip\n\tanywhere drop\n", uint64(2))
	f.Add("node pods-interface-prefix veth\n", uint64(3))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		if table, err := lb.ParseTable(text); err == nil {
			checkText(t, table)
		} else if table != nil {
			t.Fatalf("both a table and the error %v", err)
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		var table lb.Table
		for range rng.IntN(12) {
			o, fronts := randomWish(rng)
			table.Replace(o, fronts)
		}
		table.Node = randomNode(rng)
		checkText(t, &table)
	})
}

// checkText compares a table with the one that is read back from its text.
func checkText(t *testing.T, table *lb.Table) {
	t.Helper()
	text := table.String()
	back, err := lb.ParseTable(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if again := back.String(); again != text {
		t.Fatalf("the text\n%s\nreads back as\n%s", text, again)
	}
	if !back.Node.Equal(table.Node) {
		t.Fatalf("the node %+v reads back as %+v", table.Node, back.Node)
	}
	checkSameRows(t, back, table)
}

// checkSameRows compares the rows in force and the contests of two tables.
func checkSameRows(t *testing.T, got, want *lb.Table) {
	t.Helper()
	if got.Len() != want.Len() {
		t.Fatalf("%d rows, want %d", got.Len(), want.Len())
	}
	for f := range want.All() {
		if g := got.Get(f.Key); !g.Equal(f) {
			t.Fatalf("got row\n%swant\n%s", g, f)
		}
		if g, w := got.Contests(f.Key), want.Contests(f.Key); !slices.Equal(g, w) {
			t.Fatalf("%s: got contests %v, want %v", f.Key, g, w)
		}
	}
}

// randomWish returns a Service of a few and the rows that it asks for, with few distinct keys, so that
// services meet on them.
func randomWish(rng *rand.Rand) (lb.Owner, []*lb.Frontend) {
	o := lb.Owner{Name: fmt.Sprintf("ns/svc-%d", rng.IntN(4)), Created: int64(rng.IntN(3) - 1)}
	var fronts []*lb.Frontend
	for port := range rng.IntN(4) {
		service := fmt.Sprintf("%s:p%d", o.Name, port)
		proto := []lb.Proto{lb.TCP, lb.UDP}[rng.IntN(2)]
		cluster, local := randomSet(rng, service, proto, lb.Cluster), randomSet(rng, service, proto, lb.Local)
		serving := randomSet(rng, service, proto, lb.Serving)
		for range rng.IntN(4) {
			f := randomRow(rng, service, cluster, local)
			if proto == lb.UDP && rng.IntN(2) == 0 {
				f.Serving = serving
			}
			fronts = append(fronts, f)
		}
	}
	if rng.IntN(3) == 0 {
		fronts = append(fronts, &lb.Frontend{
			Key: lb.Key{Port: uint16(80 + rng.IntN(2)), Proto: lb.TCP}, Service: o.Name, Kind: lb.HealthCheck,
			Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}, LocalEndpoints: rng.IntN(3),
		})
	}
	return o, fronts
}

func randomRow(rng *rand.Rand, service string, cluster, local *lb.BackendSet) *lb.Frontend {
	f := &lb.Frontend{
		Key:      lb.Key{Addr: randomAddr(rng, 3), Port: uint16(80 + rng.IntN(2)), Proto: cluster.ID.Proto},
		Service:  service,
		Kind:     lb.Kind(1 + rng.IntN(3)),
		Affinity: time.Duration(rng.IntN(2)*10800) * time.Second,
		Sources:  randomPrefixes(rng),
	}
	if rng.IntN(4) == 0 {
		f.Key.Addr, f.Kind, f.Sources = netip.Addr{}, lb.NodePort, nil
	}
	for _, from := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
		if from != lb.Anywhere && rng.IntN(2) == 0 {
			continue
		}
		r := lb.Route{From: from, Do: lb.Action(1 + rng.IntN(3))}
		if r.Do == lb.Balance {
			r.Masq = rng.IntN(2) == 0
			r.To = cluster
			if rng.IntN(2) == 0 {
				r.To = local
			}
		}
		f.Routes = append(f.Routes, r)
	}
	return f
}

func randomSet(rng *rand.Rand, service string, proto lb.Proto, scope lb.Scope) *lb.BackendSet {
	var all []lb.Backend
	for i := range 1 + rng.IntN(3) {
		if i == 0 || rng.IntN(2) == 0 {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8080)
			b := lb.Backend{Addr: addr}
			if scope != lb.Serving {
				b.Local, b.Draining = rng.IntN(2) == 0, rng.IntN(4) == 0
				b.Unplaced = !b.Local && rng.IntN(2) == 0
			}
			all = append(all, b)
		}
	}
	return &lb.BackendSet{ID: lb.SetID{Service: service, Proto: proto, Scope: scope}, Backends: lb.BackendsOf(all...)}
}

func randomAddr(rng *rand.Rand, n int) netip.Addr {
	if rng.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.IntN(n))})
	}
	return netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 15: byte(rng.IntN(n))})
}

func randomPrefixes(rng *rand.Rand) []netip.Prefix {
	var out []netip.Prefix
	for i := range 3 {
		if rng.IntN(3) == 0 {
			out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16))
		}
	}
	return out
}

func randomNode(rng *rand.Rand) lb.Node {
	n := lb.Node{NodePorts: randomPrefixes(rng), ServiceCIDRs: randomPrefixes(rng)}
	switch rng.IntN(4) {
	case 0:
		n.Pods.Prefixes = randomPrefixes(rng)
	case 1:
		n.Pods.Interface = "cbr0"
	case 2:
		n.Pods.InterfacePrefix = "veth"
	}
	return n
}

func mustParse(t *testing.T, text string) *lb.Table {
	t.Helper()
	table, err := lb.ParseTable(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return table
}

func mustKey(t *testing.T, s string) lb.Key {
	t.Helper()
	k, err := lb.ParseKey(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
