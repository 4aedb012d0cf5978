package lb_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
)

var (
	oldest  = lb.Owner{Name: "ns/m", Created: 100}
	middle  = lb.Owner{Name: "ns/a", Created: 200}
	middle2 = lb.Owner{Name: "ns/b", Created: 200}
)

// row returns a dropping frontend for the key, as of o.
func row(o lb.Owner, key lb.Key) *lb.Frontend {
	return &lb.Frontend{Key: key, Service: o.Name, Kind: lb.ExternalIP,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}}
}

// SV-24: the kind of an address counts before the Service's age, and the kinds of frontends may
// change.
func TestKindBeforeAgeSV24(t *testing.T) {
	key := mustKey(t, "10.96.0.7:80/tcp")
	as := func(o lb.Owner, kind lb.Kind) *lb.Frontend {
		f := row(o, key)
		f.Kind = kind
		return f
	}
	var table lb.Table
	for _, step := range []struct {
		story     string
		owner     lb.Owner
		kind      lb.Kind // 0: the Service is deleted
		winner    string
		conflicts string // that begin
		why       string
	}{
		{"alone", oldest, lb.ExternalIP, "ns/m", "", ""},
		{"a load balancer's address", middle, lb.LoadBalancer, "ns/a", "ns/m loses to ns/a",
			"has it as its load balancer's address"},
		{"a cluster IP", middle2, lb.ClusterIP, "ns/b", "ns/a loses to ns/b", "has it as its cluster IP"},
		{"a loser of another kind that still loses", oldest, lb.LoadBalancer, "ns/b", "", ""},
		{"an older cluster IP", oldest, lb.ClusterIP, "ns/m", "ns/b loses to ns/m", "is older"},
		{"the winner is of another kind", oldest, lb.ExternalIP, "ns/b", "ns/m loses to ns/b",
			"has it as its cluster IP"},
		{"of another kind, and still the winner", middle2, lb.LoadBalancer, "ns/a", "ns/b loses to ns/a",
			"is as old and comes first by name"},
		{"the winner goes", middle, 0, "ns/b", "", ""},
		{"and the next", middle2, 0, "ns/m", "", ""},
	} {
		var fronts []*lb.Frontend
		if step.kind != 0 {
			fronts = append(fronts, as(step.owner, step.kind))
		}
		was := table.Get(key)
		changes, conflicts := table.Replace(step.owner, fronts)
		if got := table.Get(key).Service; got != step.winner {
			t.Errorf("%s: %s has the key, want %s", step.story, got, step.winner)
		}
		if now := table.Get(key); (now == was) != (len(changes) == 0) || now != was &&
			changes[0] != (lb.Change{Key: key, Old: was, New: now}) {
			t.Errorf("%s: changes %v", step.story, changes)
		}
		got, why := "", ""
		for _, c := range conflicts {
			got, why = c.Loser.Name+" loses to "+c.Winner.Name, c.Why()
			if lost, ok := table.Lost(key, c.Loser.Name); !ok || lost != c {
				t.Errorf("%s: the table says %v of the conflict %v", step.story, lost, c)
			}
		}
		if got != step.conflicts || len(conflicts) > 1 || why != step.why {
			t.Errorf("%s: conflicts %v: %q which %s, want %q which %s", step.story, conflicts, got, why, step.conflicts,
				step.why)
		}
		if _, lost := table.Lost(key, step.winner); lost {
			t.Errorf("%s: the winner loses", step.story)
		}
	}
	if table.Contested() != 0 {
		t.Errorf("%d keys are contested still", table.Contested())
	}
}

// Many Services on one key cost each change of them a logarithm, and other keys nothing.
func TestManyClaimsOnOneKey(t *testing.T) {
	key, other := mustKey(t, "192.0.2.7:80/tcp"), mustKey(t, "192.0.2.8:80/tcp")
	visited := func(claims int) (others, one uint64) {
		var table lb.Table
		for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(claims) {
			o := lb.Owner{Name: fmt.Sprint("ns/", i), Created: int64(i)}
			table.Replace(o, []*lb.Frontend{row(o, key)})
		}
		count := func(o lb.Owner, fronts ...*lb.Frontend) uint64 {
			before := table.Visited
			table.Replace(o, fronts)
			return table.Visited - before
		}
		others = count(middle, row(middle, other))
		for _, o := range []lb.Owner{{Name: "ns/first", Created: -1}, {Name: "ns/amid", Created: int64(claims / 2)}} {
			one = max(one, count(o, row(o, key)), count(o))
		}
		return others, one
	}
	fewOthers, few := visited(100)
	manyOthers, many := visited(10_000)
	if fewOthers != 1 || manyOthers != 1 {
		t.Errorf("a Service beside 100 and 10,000 claims on another key visits %d and %d frontends, want its own",
			fewOthers, manyOthers)
	}
	if few <= 1 || many > 3*few {
		t.Errorf("a claim on a key with 100 claims visits %d frontends, with 10,000 %d", few, many)
	}
}

func TestSameKeyTwice(t *testing.T) {
	key := mustKey(t, "192.0.2.7:80/tcp")
	for _, n := range []int{2, 40} { // 40 are too many to search
		var fronts []*lb.Frontend
		for range n {
			fronts = append(fronts, row(oldest, key))
		}
		for i := range n {
			one := row(oldest, lb.Key{Addr: key.Addr, Port: uint16(1 + i), Proto: lb.UDP})
			fronts = append(fronts, one, fronts[0], row(oldest, one.Key))
		}
		var table lb.Table
		changes, conflicts := table.Replace(oldest, fronts)
		if owned := table.Owned(oldest.Name); len(owned) != n+1 {
			t.Errorf("n=%d: %d rows kept, want %d", n, len(owned), n+1)
		}
		if len(changes) != n+1 || len(conflicts) != 0 || table.Len() != n+1 || table.Get(key) != fronts[0] {
			t.Errorf("n=%d: %d changes, conflicts %v, %d rows", n, len(changes), conflicts, table.Len())
		}
	}
}

// Equal frontends and sets stay the same values, so that planes may compare pointers.
func TestReplaceKeepsEqualValues(t *testing.T) {
	parse := func(endpoint string, ports int) []*lb.Frontend {
		text := "set ns/m:a/tcp/local\n  " + endpoint + "\n"
		for i := range ports {
			set := fmt.Sprintf("ns/m:p%d/tcp/cluster", i)
			text += fmt.Sprintf("10.96.0.1:%d/tcp ns/m:p%d clusterip\n  anywhere balance %s\nset %s\n  10.0.0.1:80\n",
				80+i, i, set, set)
		}
		text += "192.0.2.1:80/tcp ns/m:a loadbalancer\n  host balance ns/m:a/tcp/local\n" +
			"  anywhere balance ns/m:a/tcp/cluster\nset ns/m:a/tcp/cluster\n  10.0.0.1:80\n"
		return mustParse(t, text).Sorted()
	}
	for _, ports := range []int{1, 20} {
		var table lb.Table
		table.Replace(oldest, parse("10.0.0.2:80", ports))
		before := table.Sorted()
		if changes, _ := table.Replace(oldest, parse("10.0.0.2:80", ports)); len(changes) != 0 {
			t.Errorf("ports=%d: the same again: changes %v", ports, changes)
		}
		changes, _ := table.Replace(oldest, parse("10.0.0.3:80", ports))
		if len(changes) != 1 || changes[0].New.Kind != lb.LoadBalancer {
			t.Fatalf("ports=%d: changes %v, want only the row that balances over the changed set", ports, changes)
		}
		after := table.Sorted()
		if !slices.Equal(before[:ports], after[:ports]) {
			t.Errorf("ports=%d: rows that did not change are new values", ports)
		}
		if after[ports].Routes[1].To != before[ports].Routes[1].To {
			t.Errorf("ports=%d: a set that did not change is a new value", ports)
		}
		var affine []*lb.Frontend // all of them change, their sets do not
		for _, f := range parse("10.0.0.3:80", ports) {
			f.Affinity = time.Hour
			affine = append(affine, f)
		}
		table.Replace(oldest, affine)
		for i, f := range table.Sorted() {
			if f == after[i] || f.Set(lb.Cluster) != after[i].Set(lb.Cluster) {
				t.Errorf("ports=%d: frontend %d has another set, though only its affinity changed", ports, i)
			}
		}
	}
}

// A Service that was recreated with equal frontends changes nothing.
func TestRecreatedServiceKeepsEqualValues(t *testing.T) {
	var table lb.Table
	table.Replace(oldest, []*lb.Frontend{long(40)})
	was := table.Sorted()
	recreated := lb.Owner{Name: oldest.Name, Created: oldest.Created + 1}
	if changes, _ := table.Replace(recreated, []*lb.Frontend{long(40)}); len(changes) != 0 ||
		!slices.Equal(table.Sorted(), was) || table.Owner(was[0].Key) != recreated {
		t.Errorf("changes %v, the owner is %v", changes, table.Owner(was[0].Key))
	}
}

// DP-50: Serving is part of a frontend, and stays the same value if it is equal, as other sets do.
// Frontends of one service port share it.
func TestReplaceServing(t *testing.T) {
	parse := func(routed string, serving ...string) []*lb.Frontend {
		text := "set ns/m:a/udp/cluster\n  " + routed + "\n"
		tail := ""
		if len(serving) > 0 {
			text += "set ns/m:a/udp/serving\n  " + strings.Join(serving, "\n  ") + "\n"
			tail = "  serving ns/m:a/udp/serving\n"
		}
		for _, key := range []string{"10.96.0.1:53", "192.0.2.1:53"} {
			text += key + "/udp ns/m:a externalip\n  anywhere balance ns/m:a/udp/cluster\n" + tail
		}
		return mustParse(t, text).Sorted()
	}
	var table lb.Table
	table.Replace(oldest, parse("10.0.0.1:53"))
	replace := func(wantChanges int, fronts []*lb.Frontend) (before, after []*lb.Frontend) {
		t.Helper()
		before = table.Sorted()
		changes, _ := table.Replace(oldest, fronts)
		after = table.Sorted()
		if len(changes) != wantChanges || after[0].Serving != after[1].Serving {
			t.Fatalf("%d changes, want %d:\n%s", len(changes), wantChanges, &table)
		}
		return before, after
	}
	before, after := replace(2, parse("10.0.0.1:53", "10.0.0.1:53", "10.0.0.2:53"))
	if before[0].Set(lb.Cluster) != after[0].Set(lb.Cluster) {
		t.Error("the set of the routes is a new value, though only what serves changed")
	}
	replace(0, parse("10.0.0.1:53", "10.0.0.1:53", "10.0.0.2:53"))
	before, after = replace(2, parse("10.0.0.2:53", "10.0.0.1:53", "10.0.0.2:53"))
	if before[0].Serving != after[0].Serving {
		t.Error("what serves is a new value, though only the routes changed")
	}
	replace(2, parse("10.0.0.2:53", "10.0.0.2:53", "10.0.0.3:53"))
	replace(2, parse("10.0.0.2:53"))
}

// DP-50: flows may stay at the endpoints in Serving, and at those of the routes if Serving is nil.
func TestServes(t *testing.T) {
	const text = `10.96.0.1:53/udp ns/m:a externalip
  host     balance ns/m:a/udp/cluster
  anywhere balance ns/m:a/udp/local
10.96.0.2:53/udp ns/m:a externalip
  anywhere drop
  serving  ns/m:a/udp/serving
10.96.0.3:53/udp ns/m:a externalip
  anywhere reject
set ns/m:a/udp/cluster
  10.0.0.1:53
set ns/m:a/udp/local
  10.0.0.2:53
set ns/m:a/udp/serving
  10.0.0.1:53
  10.0.0.3:53
`
	for i, want := range []string{"10.0.0.1:53 10.0.0.2:53 ", "10.0.0.1:53 10.0.0.3:53 ", ""} {
		f, got := mustParse(t, text).Sorted()[i], ""
		for _, a := range []string{"10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53", "10.0.0.1:54"} {
			if f.Serves(netip.MustParseAddrPort(a)) {
				got += a + " "
			}
		}
		if got != want {
			t.Errorf("%s serve %s, want %s", got, f, want)
		}
	}
}

// HT-16: a health check whose count changes is a change, and one whose count does not is none. It
// conflicts over its key like any other frontend (SV-24).
func TestReplaceHealthCheck(t *testing.T) {
	parse := func(endpoints int) []*lb.Frontend {
		return mustParse(t, fmt.Sprintf("nodeport:32100/tcp ns/m healthcheck endpoints %d\n  anywhere accept\n",
			endpoints)).Sorted()
	}
	var table lb.Table
	table.Replace(oldest, parse(1))
	if changes, _ := table.Replace(oldest, parse(1)); len(changes) != 0 {
		t.Errorf("the same count: changes %v", changes)
	}
	changes, _ := table.Replace(oldest, parse(0))
	if len(changes) != 1 || changes[0].Old.LocalEndpoints != 1 || changes[0].New.LocalEndpoints != 0 {
		t.Errorf("another count: changes %v, want one from 1 to 0", changes)
	}
	nodePort := row(middle, lb.Key{Port: 32100, Proto: lb.TCP})
	nodePort.Kind = lb.NodePort
	changes, conflicts := table.Replace(middle, []*lb.Frontend{nodePort})
	if len(changes) != 0 || len(conflicts) != 1 || conflicts[0].Winner != oldest {
		t.Errorf("a younger NodePort: changes %v, conflicts %v, want the health check to win", changes, conflicts)
	}
	if changes, _ := table.Replace(oldest, nil); len(changes) != 1 || !changes[0].Old.Accepts() ||
		changes[0].New.Accepts() {
		t.Errorf("the health check went: changes %v, want one to the NodePort", changes)
	}
	if (*lb.Frontend)(nil).Accepts() {
		t.Error("no row accepts")
	}
}

// The cost of a change follows the Service, not the table.
func TestReplaceVisitsOneService(t *testing.T) {
	visited := map[int]uint64{}
	for _, services := range []int{100, 10_000} {
		var table lb.Table
		for i := range services {
			o := lb.Owner{Name: fmt.Sprintf("ns/svc-%d", i)}
			table.Replace(o,
				[]*lb.Frontend{row(o, lb.Key{Addr: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
					Port: 80, Proto: lb.TCP})})
		}
		before := table.Visited
		o := lb.Owner{Name: "ns/svc-7"}
		changed := *table.Owned(o.Name)[0]
		changed.Kind = lb.LoadBalancer
		table.Replace(o, []*lb.Frontend{&changed})
		visited[services] = table.Visited - before
	}
	if visited[100] != 2 || visited[10_000] != 2 {
		t.Errorf("rows visited by a change, by services: %v, want 2: the row before and the row after", visited)
	}
}

func TestExpand(t *testing.T) {
	a, b := netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("192.0.2.1")
	for _, test := range []struct {
		key   string
		addrs []netip.Addr
		want  []string
	}{
		{"10.96.0.1:80/tcp", []netip.Addr{a, b}, []string{"10.96.0.1:80/tcp"}},
		{"10.96.0.1:80/tcp", nil, []string{"10.96.0.1:80/tcp"}},
		{"nodeport:30080/udp", []netip.Addr{b, a}, []string{"192.0.2.1:30080/udp", "172.18.0.2:30080/udp"}},
		{"nodeport:30080/udp", nil, nil},
	} {
		var got []string
		for k := range lb.Expand(mustKey(t, test.key), test.addrs) {
			got = append(got, k.String())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("Expand(%s, %v) = %v, want %v", test.key, test.addrs, got, test.want)
		}
	}
	for k := range lb.Expand(mustKey(t, "nodeport:1/tcp"), []netip.Addr{b, a}) {
		if k.Addr != b {
			t.Error("a loop that breaks went on")
		}
		break
	}
}

// FuzzTableReplace shows that any sequence of calls gives the same table as only the last call of
// each Service (SV-24), and that its changes, applied one by one, give the contents of the table.
func FuzzTableReplace(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var table lb.Table
		last := map[lb.Owner][]*lb.Frontend{}
		applied := map[lb.Key]*lb.Frontend{}
		for range steps % 32 {
			o, fronts := randomWish(rng)
			maps.DeleteFunc(last, func(p lb.Owner, _ []*lb.Frontend) bool { return p.Name == o.Name })
			if len(fronts) > 0 {
				last[o] = fronts
			}
			changes, conflicts := table.Replace(o, fronts)
			checkChanges(t, applied, changes)
			for _, c := range conflicts {
				if c.Winner != o && c.Loser != o || !slices.Contains(table.Conflicts(c.Key), c) {
					t.Fatalf("Replace of %v reported the conflict %v", o, c)
				}
			}
			if !maps.Equal(applied, maps.Collect(keyed(&table))) {
				t.Fatalf("the changes give %v, the table holds\n%s", applied, &table)
			}
		}
		var fresh lb.Table
		for o, fronts := range last {
			fresh.Replace(o, fronts)
		}
		if slow := winnersSlow(last); !maps.Equal(slow, maps.Collect(winners(&table))) {
			t.Fatalf("by the specification %v win, in the table\n%s", slow, &table)
		}
		checkSameRows(t, &table, &fresh)
	})
}

// winnersSlow returns the winner of each key (SV-24), written for readability.
func winnersSlow(asked map[lb.Owner][]*lb.Frontend) map[lb.Key]string {
	// NodePorts and health checks are equals
	kinds := map[lb.Kind]int{lb.ClusterIP: 1, lb.LoadBalancer: 2, lb.ExternalIP: 3}
	out, best := map[lb.Key]string{}, map[lb.Key]string{}
	for o, fronts := range asked {
		mine := map[lb.Key]bool{}
		for _, f := range fronts {
			if mine[f.Key] { // of two frontends with one key the first counts
				continue
			}
			mine[f.Key] = true
			rank := fmt.Sprintf("%d %020d %s", kinds[f.Kind], o.Created+1000, o.Name)
			if best[f.Key] == "" || rank < best[f.Key] {
				best[f.Key], out[f.Key] = rank, o.Name
			}
		}
	}
	return out
}

func winners(table *lb.Table) func(yield func(lb.Key, string) bool) {
	return func(yield func(lb.Key, string) bool) {
		for f := range table.All() {
			name, _, _ := strings.Cut(f.Service, ":")
			if !yield(f.Key, name) {
				return
			}
		}
	}
}

// checkChanges applies changes. Each must have the former frontend, differ from it, and be the only
// one for its key.
func checkChanges(t *testing.T, applied map[lb.Key]*lb.Frontend, changes []lb.Change) {
	t.Helper()
	seen := map[lb.Key]bool{}
	for _, c := range changes {
		if c.Old != applied[c.Key] || c.Old == c.New || seen[c.Key] {
			t.Fatalf("change of %s from\n%sto\n%swhere there was\n%s", c.Key, c.Old, c.New, applied[c.Key])
		}
		seen[c.Key] = true
		if c.New == nil {
			delete(applied, c.Key)
		} else {
			applied[c.Key] = c.New
		}
	}
}

func keyed(table *lb.Table) func(yield func(lb.Key, *lb.Frontend) bool) {
	return func(yield func(lb.Key, *lb.Frontend) bool) {
		for f := range table.All() {
			if !yield(f.Key, f) {
				return
			}
		}
	}
}
