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
	"kube-proxy/test/tables"
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
	// In the text 53/udp is first, since keys are sorted by port.
	rows := strings.SplitAfter(shopTable, "\n")
	i := slices.Index(rows, "192.0.2.7:53/udp shop/web:dns loadbalancer\n")
	j := slices.Index(rows, "192.0.2.7:80/tcp shop/web:http loadbalancer affinity 10800s sources "+
		"10.0.0.0/8,192.0.2.7/32 preserve destination\n")
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
	if health := table.Get(mustKey(t, "nodeport:32100/tcp")); health.Kind != lb.HealthCheck ||
		health.LocalEndpoints != 2 || !health.Accepts() {
		t.Errorf("wrong row:\n%s", health)
	}
	row := table.Get(mustKey(t, "192.0.2.7:80/tcp"))
	if row.Affinity != 3*time.Hour || row.Kind != lb.LoadBalancer || len(row.Sources) != 2 || !row.PreserveDestination {
		t.Errorf("wrong row:\n%s", row)
	}
	if row.Set(lb.Cluster) == nil || row.Set(lb.Cluster) != table.Get(mustKey(t, "10.96.0.7:80/tcp")).Set(lb.Cluster) {
		t.Error("rows of one service do not share their set")
	}
	dns := table.Get(mustKey(t, "192.0.2.7:53/udp"))
	if s := dns.Serving; s == nil || s.Backends.Len() != 2 || dns.Set(lb.Serving) != nil || row.Serving != nil {
		t.Errorf("wrong row:\n%s", dns)
	}
}

// Only facts that are known are in the line of the node.
func TestNodeText(t *testing.T) {
	prefix := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for want, n := range map[string]lb.Node{
		"":                                  {},
		"node nodeports 10.1.0.0/16\n":      {NodePorts: prefix},
		"node localhost ::1\n":              {Localhost: netip.IPv6Loopback()},
		"node pods 10.1.0.0/16\n":           {Pods: lb.Detector{Prefixes: prefix}},
		"node pods-interface br0\n":         {Pods: lb.Detector{Interface: "br0"}},
		"node pods-interface-prefix veth\n": {Pods: lb.Detector{InterfacePrefix: "veth"}},
		"node services 10.1.0.0/16\n":       {ServiceCIDRs: prefix},
	} {
		if got := (&lb.Table{Node: n}).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
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
	if last := row.Last(); last.From != lb.Anywhere || last.To != row.Set(lb.Local) {
		t.Errorf("the last route is from %s", last.From)
	}
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

// FuzzTable shows that a random table survives the way through its text.
func FuzzTable(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
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

// checkText compares a table with the one parsed from its text.
func checkText(t *testing.T, table *lb.Table) {
	t.Helper()
	text := table.String()
	back, err := tables.Parse(text)
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

// checkSameRows compares the frontends in force and the conflicts of two tables.
func checkSameRows(t *testing.T, got, want *lb.Table) {
	t.Helper()
	if got.Len() != want.Len() {
		t.Fatalf("%d rows, want %d", got.Len(), want.Len())
	}
	for f := range want.All() {
		if g := got.Get(f.Key); !g.Equal(f) {
			t.Fatalf("got row\n%swant\n%s", g, f)
		}
		if g, w := got.Conflicts(f.Key), want.Conflicts(f.Key); !slices.Equal(g, w) {
			t.Fatalf("%s: got conflicts %v, want %v", f.Key, g, w)
		}
	}
}

// randomWish returns one of a few Services and its frontends, with few distinct keys, so that
// Services conflict.
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
	table, err := tables.Parse(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return table
}

func mustKey(t *testing.T, s string) lb.Key {
	t.Helper()
	k, err := tables.Key(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
