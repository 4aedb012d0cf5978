//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/nodetrace"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

var _ mode.Tracer = (*Plane)(nil)

// tracedPlane is a plane with a table that has every kind of frontend.
type tracedPlane struct {
	planetest.World
	*Plane
	t    *testing.T
	want *lb.Table
}

func newTracedPlane(t *testing.T, w planetest.World) *tracedPlane {
	inNetns(t)
	l := &tracedPlane{w, newPlane(t, w.Family), t, &lb.Table{Node: w.Node()}}
	l.want.Replace(w.Full(0, 0, 3, 1, 0))          // all kinds, with an external policy Local
	l.want.Replace(w.Full(1, 10, 3, 0, 0))         // no local endpoint
	l.want.Replace(w.Full(2, 20, 4, 2, time.Hour)) // session affinity
	l.want.Replace(w.ClusterIP(3, 0, 0))           // no endpoint
	// More backends than the balancer draws from exactly.
	l.want.Replace(w.ClusterIP(4, 40, 21))
	reset(t, l.Plane, l.want)
	return l
}

// packets returns packets that distinguish the cases, by name.
func (l *tracedPlane) packets() map[string]trace.Packet {
	all := map[string]trace.Packet{}
	add := func(name string, from, to netip.Addr, port int, p trace.Packet) {
		p.From, p.To, p.Proto = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, uint16(port)), lb.TCP
		all[name] = p
	}
	pod, node, out := l.Addr(100, 99), l.Addr(192, 1), l.Addr(172, 7)
	for i := range 5 {
		add(fmt.Sprintf("pod to cluster IP %d", i), pod, l.Addr(10, i+1), 80, trace.Packet{})
		add(fmt.Sprintf("node to cluster IP %d", i), node, l.Addr(10, i+1), 80, trace.Packet{Host: true})
	}
	for i := range 3 {
		add(fmt.Sprintf("outside to NodePort %d", i), out, node, 30000+i, trace.Packet{Here: true})
		add(fmt.Sprintf("pod to NodePort %d", i), pod, node, 30000+i, trace.Packet{Here: true})
		add(fmt.Sprintf("outside to external IP %d", i), out, l.Addr(203, i+1), 80, trace.Packet{})
		add(fmt.Sprintf("outside to load balancer %d", i), out, l.Addr(198, i+1), 80, trace.Packet{})
		add(fmt.Sprintf("pod to load balancer %d", i), pod, l.Addr(198, i+1), 80, trace.Packet{})
	}
	add("outside to no NodePort", out, node, 31000, trace.Packet{Here: true})
	add("pod to another port", pod, l.Addr(10, 1), 81, trace.Packet{})
	add("pod to an unknown cluster IP", pod, l.Addr(10, 200), 80, trace.Packet{})
	add("pod to a stranger", pod, l.Addr(172, 8), 80, trace.Packet{})
	add("a backend to itself", l.Addr(100, 10), l.Addr(10, 2), 80, trace.Packet{})
	return all
}

func (l *tracedPlane) follow(p trace.Packet) trace.Kernel {
	l.t.Helper()
	k, err := l.TracePacket(l.t.Context(), p, nodetrace.Kernel)
	if err != nil {
		l.t.Fatal(err)
	}
	return k
}

// answer returns the parts of an answer that tests compare.
func answer(k trace.Kernel) string {
	text := string(k.Verdict)
	if k.Masquerade {
		text += " masquerade"
	}
	for _, b := range k.Backends {
		text += fmt.Sprintf(" %s=%.4f", b.Address, b.Share)
	}
	return text
}

func (l *tracedPlane) differences() []trace.Difference { return planetest.Differences(l.t, l, l.want) }

// sabotage writes to the table as another program.
func (l *tracedPlane) sabotage(what func(c *change)) {
	l.t.Helper()
	s, err := wire.Open()
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.Close()
	c := l.newChange(newState(0))
	what(c)
	if _, err := s.Commit(l.t.Context(), &selfwrites.Ledger{}, c.out); err != nil {
		l.t.Fatalf("sabotage: %v", err)
	}
}

// repair makes the plane repair the differences, after which nothing differs.
func (l *tracedPlane) repair() {
	l.t.Helper()
	reset(l.t, l.Plane, l.want)
	if all := l.differences(); len(all) != 0 {
		l.t.Fatalf("after a Reset these differ: %+v", all)
	}
}

// named returns the difference of an object; it fails if there is no difference.
func (l *tracedPlane) named(object string) trace.Difference {
	l.t.Helper()
	all := l.differences()
	i := slices.IndexFunc(all, func(d trace.Difference) bool { return d.Object == object })
	if i < 0 {
		l.t.Errorf("nothing says that %s differs: %+v", object, all)
		return trace.Difference{}
	}
	return all[i]
}

// ways returns the answers for all packets.
func (l *tracedPlane) ways() map[string]trace.Kernel {
	all := map[string]trace.Kernel{}
	for name, p := range l.packets() {
		all[name] = l.follow(p)
	}
	return all
}

// Differences names a deleted element of any map, and packets that met it meet no element.
func TestSabotageOfElements(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		l := newTracedPlane(t, w)
		packets, before := l.packets(), l.ways()
		snap, _, err := l.readTable(t.Context(), allSets)
		if err != nil {
			t.Fatal(err)
		}
		met, some := map[setIndex]int{}, 4
		if w.Family == lb.IPv6 {
			some = 1
		}
		lose := func(i setIndex, key []byte) {
			l.sabotage(func(c *change) { c.out.Remove(i, key) })
			object, text := l.rules.sets[i].ElementText(key), l.rules.sets[i].Key.Text(key)
			if d := l.named(object); d.Actual != "" || d.Desired == "" {
				t.Errorf("%s was deleted: %+v", object, d)
			}
			inspected := 0
			for name, k := range before {
				if inspected == 3 || !slices.ContainsFunc(k.Way, func(line string) bool {
					return strings.HasPrefix(line, "element { "+text) &&
						strings.HasSuffix(line, " "+l.rules.sets[i].Name)
				}) {
					continue
				}
				inspected++
				met[i]++
				if is := l.follow(packets[name]); !slices.ContainsFunc(is.Way, func(line string) bool {
					return strings.HasPrefix(line, "no element { "+text+" } in ")
				}) {
					t.Errorf("%s without %s:\n%s", name, object, strings.Join(is.Way, "\n"))
				}
			}
		}
		for i := range setCount {
			recs := snap.records[i].Sorted()
			for n := range recs.Len() {
				if every := max(1, recs.Len()/some); n%every != 0 && !(i == sEqualBytes && n == 10) {
					continue // the elements of a map are alike
				}
				rec := slices.Clone(recs.At(n))
				lose(i, rec[:l.rules.sets[i].KeyLen()])
				l.sabotage(func(c *change) { c.out.Add(i, rec) })
			}
			for key, v := range snap.verdicts[i] {
				lose(i, []byte(key))
				l.sabotage(func(c *change) { c.out.AddVerdict(i, []byte(key), v) })
			}
		}
		if all := l.differences(); len(all) != 0 {
			t.Errorf("all is there again, and these differ: %+v", all)
		}
		for i := range setCount {
			if d := l.rules.sets[i]; some > 1 && met[i] == 0 && i != sReserved && !d.Dynamic() {
				t.Errorf("no packet met an element of %s", d.Name)
			}
		}
	})
}

// Differences names a chain without its rules and a missing chain, and the trace of packets that
// met it says so.
func TestSabotageOfChains(t *testing.T) {
	l := newTracedPlane(t, planetest.World{Family: lb.IPv4})
	packets, before := l.packets(), l.ways()
	chains, _ := l.newChange(l.st).structure()
	met := 0
	for _, c := range chains {
		l.sabotage(func(b *change) { b.out.FlushChain(c.Name) })
		for i := range c.Rules {
			if d := l.named(fmt.Sprintf("rule %d of chain %s", i+1, c.Name)); d.Actual != "" ||
				d.Desired != c.Rules[i].Text() {
				t.Errorf("chain %s was flushed: %+v", c.Name, d)
			}
		}
		check := func(line string) {
			for name, k := range before {
				if !slices.ContainsFunc(k.Way,
					func(l string) bool { return strings.HasPrefix(l, "chain "+c.Name+" rule ") }) {
					continue
				}
				met++
				if is := l.follow(packets[name]); !slices.Contains(is.Way, line) {
					t.Errorf("%s does not say %q:\n%s", name, line, strings.Join(is.Way, "\n"))
				}
				break
			}
		}
		check("chain " + c.Name + " has no rules")
		if c.IsBase() {
			l.sabotage(func(b *change) { b.out.DeleteChain(c.Name) })
			if d := l.named("chain " + c.Name); d.Actual != "" || d.Desired == "" {
				t.Errorf("chain %s was deleted: %+v", c.Name, d)
			}
			check("no base chain " + c.Name)
			l.sabotage(func(b *change) { b.out.AddChain(c.Name, c.Hook) })
		}
		l.sabotage(func(b *change) { c.AddTo(b.out) })
	}
	if met < len(chains)/2 {
		t.Errorf("packets met %d of %d chains", met, len(chains))
	}
	if all := l.differences(); len(all) != 0 {
		t.Errorf("all is there again, and these differ: %+v", all)
	}
	// Without both chains that translate, a cluster IP rejects; without all chains nothing happens.
	to := packets["pod to cluster IP 0"]
	for _, c := range []string{"nat-prerouting", "nat-prerouting-again"} {
		l.sabotage(func(b *change) { b.out.FlushChain(c) })
	}
	if k := l.follow(to); k.Verdict != trace.Reject {
		t.Errorf("without translation: %s", answer(k))
	}
	for _, c := range []string{"filter-prerouting-pre-dnat", "filter-forward"} {
		l.sabotage(func(b *change) { b.out.FlushChain(c) })
	}
	if k := l.follow(to); k.Verdict != trace.Pass {
		t.Errorf("without rules: %s", answer(k))
	}
}

// A foreign object in the place of ours sends packets elsewhere, and Differences names it, even if
// its comment claims to be ours.
func TestSabotageByChange(t *testing.T) {
	l := newTracedPlane(t, planetest.World{Family: lb.IPv4})
	packets := l.packets()
	id := func(set lb.SetID) []byte { return wire.AppendNumber(nil, l.st.sets[set].id) }
	set := func(i int, s lb.Scope) lb.SetID {
		return lb.SetID{Service: fmt.Sprintf("ns/svc-%d:http", i), Proto: lb.TCP, Scope: s}
	}
	vip := func(i int) []byte { return wire.AppendKey(nil, lb.Key{Addr: l.Addr(10, i+1), Port: 80, Proto: lb.TCP}) }
	number := func(n uint32) []byte { return wire.AppendNumber(nil, n) }
	stranger := netip.AddrPortFrom(l.Addr(100, 77), 99)
	loadBalancer := wire.AppendKey(nil, lb.Key{Addr: l.Addr(198, 1), Port: 80, Proto: lb.TCP})
	other := wire.AppendKey(nil, lb.Key{Addr: l.Addr(198, 2), Port: 80, Proto: lb.TCP})
	listOf := func(i int) []byte {
		return wire.AppendNumber(nil, l.st.rows[lb.Key{Addr: l.Addr(198, i+1), Port: 80, Proto: lb.TCP}].list.Key())
	}
	for _, c := range []struct {
		name      string
		i         setIndex
		key, data []byte // of an element in the place of ours, or of a further one
		want      string // a substring; "" where we want none
		have      string // a substring
		packet    string
		becomes   string // an answer; "" if unchanged
		contains  string // part of the packet's way
	}{
		{"a backend becomes another's", sBackends, slices.Concat(id(set(0, lb.Cluster)), number(0)),
			wire.AppendAddrPort(nil, stranger), "100.0.0.", stranger.String(), "pod to cluster IP 0",
			answer(trace.Kernel{Verdict: trace.Balance,
				Backends: []trace.Backend{{Address: netip.AddrPortFrom(l.Addr(100, 1), 8080), Share: 1. / 3},
					{Address: netip.AddrPortFrom(l.Addr(100, 2), 8080), Share: 1. / 3},
					{Address: stranger, Share: 1. / 3}}}), ""},
		{"a Service has the backends of another", sClusterSets, vip(0), id(set(1, lb.Cluster)),
			"the id of set ns/svc-0:http/tcp/cluster", "that of set ns/svc-1:http/tcp/cluster", "pod to cluster IP 0",
			answer(l.follow(packets["pod to cluster IP 1"])), ""},
		{"a Service has those of none", sClusterSets, vip(0), number(4711),
			"the id of set ns/svc-0:http/tcp/cluster", "that of no set", "pod to cluster IP 0", "reject",
			"no element { 0x00001267 } in map set-shapes"},
		{"a class that rejects", sServices, vip(0), number(uint32(actionReject)), "0x", "0x00000001",
			"pod to cluster IP 0", "reject", ""},
		{"a set of fewer backends", sSetShapes, id(set(0, lb.Cluster)), number(1), "0x00000003", "0x00000001",
			"", "", ""},
		{"a Service without frontend", sServices,
			wire.AppendKey(nil, lb.Key{Addr: l.Addr(10, 200), Port: 80, Proto: lb.TCP}),
			number(uint32(actionReject)), "", "0x00000001", "pod to an unknown cluster IP", "reject", ""},
		{"a range more", sSourceRanges, slices.Concat(listKey(listOf(0), 8), []byte{172, 0, 0, 0}), nil, "", "there",
			"outside to load balancer 0", "balance 100.0.0.0:8080=1.0000", ""},
		{"the ranges of another", sSourceLists, loadBalancer, listOf(1), "the number of its list",
			"the list of 198.0.0.2:80/tcp", "", "", ""},
		{"the ranges of none", sSourceLists, other, listKey([]byte{0, 0, 0, 0}, 0), "the number of its list",
			"of no list", "pod to load balancer 1", "drop", ""},
		{"a cluster IP without Service", sClusterIPs, l.Addr(172, 8).AsSlice(), nil, "", "there", "pod to a stranger",
			"reject", ""},
		{"a slot that a balancer draws from, and shall not", sBackends,
			slices.Concat(id(set(4, lb.Cluster)), number(21)), wire.AppendAddrPort(nil, stranger), "",
			stranger.String(), "pod to cluster IP 4", "", "and 14 more of cluster-ips"},
		{"a member that left", sMemberBackends, slices.Concat(number(99), id(set(2, lb.Cluster))),
			wire.AppendAddrPort(nil, stranger), "", "100.0.0.77", "", "", ""},
	} {
		t.Log(c.name)
		l.sabotage(func(b *change) {
			if c.want != "" {
				b.out.Remove(c.i, c.key)
			}
			b.out.Add(c.i, slices.Concat(c.key, c.data))
		})
		d := l.named(l.rules.sets[c.i].ElementText(c.key))
		if !strings.Contains(d.Desired, c.want) || !strings.Contains(d.Actual, c.have) ||
			c.want == "" && d.Desired != "" {
			t.Errorf("%+v", d)
		}
		if c.packet != "" {
			l.becomes(packets[c.packet], c.becomes, c.contains)
		}
		l.repair()
	}
	for _, c := range []struct {
		name     string
		do       func(c *change)
		object   string
		want     string // a substring
		have     string
		packet   string
		becomes  string
		contains string
	}{
		{"a rule of ours by its comment alone", func(c *change) {
			ours := c.balancer(shape{scope: lb.Cluster, size: 3})
			for i := range ours.Rules {
				ours.Rules[i].Expressions = c.New("", rule.Drop).Expressions
			}
			c.out.FlushChain(ours.Name)
			ours.AddTo(c.out)
		}, "rule 1 of chain cluster-3", "dnat ip to", "other expressions", "pod to cluster IP 0", "drop",
			"chain cluster-3 rule 1"},
		{"a rule more", func(c *change) {
			c.out.AddRule("service-network", c.New("", rule.Drop).Expressions, "")
		}, "rule 4 of chain service-network", "", "comment", "pod to a stranger", "drop", ""},
		{"a chain more", func(c *change) { c.out.AddChain("mine", wire.Hook{}) }, "chain mine", "", "there",
			"pod to a stranger", "pass", ""},
		{"a chain at another hook", func(c *change) {
			c.out.FlushChain("filter-forward")
			c.out.DeleteChain("filter-forward")
		}, "chain filter-forward", "type filter hook forward priority 0", "", "pod to another port", "pass",
			"no base chain filter-forward"},
		{"a way to another chain", func(c *change) {
			c.out.Remove(sClusterShapes, number(3))
			c.out.AddVerdict(sClusterShapes, number(3), wire.Drop)
		}, "element { 0x00000003 } of map cluster-shapes", "goto cluster-3", "drop", "pod to cluster IP 0", "drop", ""},
	} {
		t.Log(c.name)
		l.sabotage(c.do)
		d := l.named(c.object)
		if !strings.Contains(d.Desired, c.want) || !strings.Contains(d.Actual, c.have) ||
			(c.have == "") != (d.Actual == "") || (c.want == "") != (d.Desired == "") {
			t.Errorf("%+v", d)
		}
		l.becomes(packets[c.packet], c.becomes, c.contains)
		if strings.HasPrefix(c.object, "rule") { // Resets recognise it by its comment
			l.sabotage(func(b *change) { b.out.FlushChain("cluster-3") })
		}
		l.repair()
	}
}

// becomes expects the answer for a packet, "" for any, and a part of its way.
func (l *tracedPlane) becomes(p trace.Packet, want, contains string) {
	l.t.Helper()
	k := l.follow(p)
	if way := strings.Join(k.Way, "\n"); want != "" && answer(k) != want || !strings.Contains(way, contains) {
		l.t.Errorf("%s, want %s, by %q:\n%s", answer(k), want, contains, way)
	}
}

// listKey returns the key of a list for ranges of a length.
func listKey(list []byte, length uint32) []byte {
	return wire.AppendNumber(nil, netlink.Order.Uint32(list)|length)
}

// The whole table may be missing or dormant. TracePacket and Differences report that, and work
// where the other verbs fail.
func TestSabotageOfTheTable(t *testing.T) {
	l := newTracedPlane(t, planetest.World{Family: lb.IPv4})
	to := l.packets()["pod to cluster IP 0"]
	runNFT(t, "add", "table", "ip", TableName, "{ flags dormant; }")
	if d := l.named("table ip " + TableName); d.Desired != "in force" {
		t.Errorf("%+v", d)
	}
	if k := l.follow(to); k.Verdict != trace.Pass || !strings.Contains(k.Way[0], "dormant") {
		t.Errorf("%+v", k)
	}
	l.repair()
	runNFT(t, "flush", "table", "ip", TableName)
	runNFT(t, "delete", "set", "ip", TableName, "cluster-ips")
	if d := l.named("set cluster-ips"); d.Actual != "" {
		t.Errorf("%+v", d)
	}
	runNFT(t, "add", "set", "ip", TableName, "cluster-ips", "{ type inet_service; }")
	if d := l.named("set cluster-ips"); d.Actual != "of other types" {
		t.Errorf("%+v", d)
	}
	if k := l.follow(to); k.Verdict != trace.Pass {
		t.Errorf("%+v", k)
	}
	runNFT(t, "delete", "table", "ip", TableName)
	if all := l.differences(); len(all) != 1 || all[0].Object != "table ip "+TableName || all[0].Actual != "" {
		t.Errorf("%+v", all)
	}
	if k := l.follow(to); k.Verdict != trace.Pass || k.Way[0] != "no table ip "+TableName {
		t.Errorf("%+v", k)
	}
	if _, err := l.Audit(t.Context(), true); !errors.Is(err, plane.ErrStateLost) {
		t.Errorf("an audit says %v", err)
	}
	if k := l.follow(to); k.Verdict != trace.Pass {
		t.Errorf("%+v", k)
	}
	l.repair()
	if k := l.follow(to); k.Verdict != trace.Balance {
		t.Errorf("%+v", k)
	}
	// Differences stops reporting when the callback returns false.
	runNFT(t, "flush", "map", "ip", TableName, "services")
	reported := 0
	if err := l.Differences(t.Context(), l.want, func(trace.Difference) bool {
		reported++
		return reported < 3
	}); err != nil || reported != 3 {
		t.Errorf("reported %d times: %v", reported, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.TracePacket(ctx, to, nodetrace.Kernel); !errors.Is(err, context.Canceled) {
		t.Errorf("without time: %v", err)
	}
	if err := l.Differences(ctx, l.want, func(trace.Difference) bool { return true }); !errors.Is(err,
		context.Canceled) {
		t.Errorf("without time: %v", err)
	}
}

// A trace reads as much from a table of 10,000 Services as from one of 100.
func TestFollowCost(t *testing.T) {
	kerneltest.Later(t)
	inNetns(t)
	w := planetest.World{Family: lb.IPv4}
	var cost []wire.Traffic
	for _, n := range []int{100, 10_000} {
		p := newPlane(t, w.Family)
		reset(t, p, w.Table(n, 3))
		sock, err := wire.Open()
		if err != nil {
			t.Fatal(err)
		}
		k, err := nodetrace.Table(t.Context(), sock, p.readLayout.table(), trace.Packet{
			From: netip.AddrPortFrom(w.Addr(100, 1<<20), 0), To: netip.AddrPortFrom(w.Addr(10, n/2), 80),
			Proto: lb.TCP})
		if err != nil || len(k.Backends) != 3 {
			t.Fatalf("%+v: %v", k, err)
		}
		cost = append(cost, sock.Asked)
		sock.Close()
	}
	t.Logf("%+v", cost)
	if a, b := cost[0], cost[1]; a.Requests != b.Requests || a.Messages != b.Messages || a.Bytes != b.Bytes ||
		a.Requests > 60 || a.Bytes > 32<<10 {
		t.Errorf("of 100 Services a trace costs %+v, of 10,000 %+v", a, b)
	}
}

// Queries see the kernel's content: beside a plane that writes all the time, each answer is one of
// the states that existed, and afterwards nothing differs.
func TestLookBesideApply(t *testing.T) {
	kerneltest.Later(t)
	inNetns(t)
	w := planetest.World{Family: lb.IPv4}
	l := &tracedPlane{w, newPlane(t, w.Family), t, &lb.Table{Node: w.Node()}}
	r := rand.New(rand.NewPCG(1, 2))
	random := func(i int) (lb.Owner, []*lb.Frontend) {
		n := r.IntN(5)
		return w.Full(i, i*100+r.IntN(3), n, r.IntN(n+1), time.Duration(r.IntN(2))*time.Hour)
	}
	for i := range 30 {
		l.want.Replace(random(i))
	}
	reset(t, l.Plane, l.want)
	stop, done := make(chan struct{}), make(chan struct{})
	onTheSame := onTheSameNamespace(t, func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			k, err := l.TracePacket(t.Context(), trace.Packet{From: netip.AddrPortFrom(w.Addr(100, 1<<20), 0),
				To: netip.AddrPortFrom(w.Addr(10, 1), 80), Proto: lb.TCP}, nodetrace.Kernel)
			if err != nil || k.Verdict != trace.Balance && k.Verdict != trace.Reject && k.Verdict != trace.Drop {
				t.Errorf("beside writes: %+v, %v", k, err)
			}
		}
	})
	go func() { onTheSame(); close(done) }()
	for i := range 1000 {
		var changes []lb.Change
		for range 1 + r.IntN(3) {
			c, _ := l.want.Replace(random(r.IntN(30)))
			changes = append(changes, c...)
		}
		apply(t, l.Plane, changes)
		if i%50 == 49 {
			if all := l.differences(); len(all) != 0 {
				t.Fatalf("after %d Applies these differ: %+v", i+1, all)
			}
		}
	}
	close(stop)
	<-done
}

// For a client in the affinity map, TracePacket returns its backend: with the kernel's hash of its
// address, and without a hash. Then the map has each client, and its use is not measured.
func TestFollowAffine(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		for name, change := range map[string]func(*Plane){"hash": seeded, "address": withoutHash} {
			t.Run(name, func(t *testing.T) {
				s := newShops(t, w.Family, change)
				for i := range 8 {
					packet := trace.Packet{From: netip.AddrPortFrom(s.client(i), 0),
						To: netip.AddrPortFrom(s.vip(0), 80), Proto: lb.TCP}
					var before, after trace.Kernel
					s.On(netlab.Node1, func() { before, _ = s.p.TracePacket(t.Context(), packet, nodetrace.Kernel) })
					pod := s.visit(i, 0)
					s.On(netlab.Node1, func() { after, _ = s.p.TracePacket(t.Context(), packet, nodetrace.Kernel) })
					if before.Affine.IsValid() || len(before.Backends) != 2 || after.Affine != netip.AddrPortFrom(pod,
						8080) || answer(after) != answer(before) {
						t.Errorf("client %d came to %s; before: %+v\nafter: %+v", i, pod, before, after)
					}
				}
				s.On(netlab.Node1, func() {
					if all, _ := entries(t, s.p); all != 8 {
						t.Errorf("%d entries of 8 clients", all)
					}
					if repaired, err := s.p.Audit(t.Context(), true); repaired != 0 || err != nil {
						t.Errorf("an audit repaired %d, %v", repaired, err)
					}
					if use := s.p.use.Load(); (use == nil) != (name == "address") {
						t.Errorf("measured %+v", use)
					}
				})
			})
		}
	})
}

// seeded fixes the seed of the hash, with which no two of the first clients share a place.
func seeded(p *Plane) { p.rules.seed = 1 }
