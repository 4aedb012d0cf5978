package main

import (
	"net/netip"
	"testing"
)

// TestJudge compares answers with outcomes: what would be noticed as wrong, and what is right.
func TestJudge(t *testing.T) {
	pod2, pod4 := netip.MustParseAddrPort("10.1.1.12:8080"), netip.MustParseAddrPort("10.1.2.14:8080")
	client, node := addressOf("client", false), addressOf("node1", false)
	q := query{from: "client", to: netip.MustParseAddrPort("10.96.0.10:80")}
	at := func(to netip.AddrPort, seen netip.Addr) outcome {
		return outcome{kind: "answered", at: to, seen: seen, host: ownerOf(to.Addr())}
	}
	silent, refused := outcome{kind: "silent"}, outcome{kind: "refused"}
	two := answer{Verdict: "balance", Backends: []ofShare{{Address: pod2, Share: 0.5}, {Address: pod4, Share: 0.5}}}
	with := func(a answer, r rest, change ...func(*answer)) answer {
		a.Rest = &r
		for _, c := range change {
			c(&a)
		}
		return a
	}
	masqueraded := func(a *answer) { a.Masquerade = true }
	delivered := rest{Verdict: "delivered"}
	for _, c := range []struct {
		name  string
		a     answer
		seen  []outcome
		class string
	}{
		{"delivered to its backends", with(two, delivered), []outcome{at(pod2, client), at(pod4, client)}, "right"},
		{"delivered, but dropped", with(two, delivered), []outcome{at(pod2, client), silent}, "wrong"},
		{"delivered, but rejected", with(two, delivered), []outcome{refused}, "wrong"},
		{"another backend", with(two, delivered), []outcome{at(netip.MustParseAddrPort("10.1.1.12:9999"),
			client)}, "wrong"},
		{"another source", with(two, delivered), []outcome{at(pod2, node)}, "wrong"},
		{"masqueraded", with(two, delivered, masqueraded), []outcome{at(pod2, node)}, "right"},
		{"not masqueraded", with(two, delivered, masqueraded), []outcome{at(pod2, client)}, "wrong"},
		{"not masqueraded at an address of the node", with(answer{Verdict: "balance", Backends: []ofShare{
			{Address: netip.AddrPortFrom(node, 8080), Share: 1, Here: true}}}, delivered, masqueraded),
			[]outcome{at(netip.AddrPortFrom(node, 8080), client)}, "right"},
		{"dropped", with(two, rest{Verdict: "dropped", Share: 1}), []outcome{silent, silent}, "right"},
		{"dropped, but answered", with(two, rest{Verdict: "dropped", Share: 1}), []outcome{silent, at(pod2,
			client)}, "wrong"},
		{"half of them dropped", with(two, rest{Verdict: "dropped", Share: 0.5}), []outcome{silent, at(pod2,
			client)}, "right"},
		{"half, but none", with(two, rest{Verdict: "dropped", Share: 0.5}),
			[]outcome{at(pod2, client), at(pod2, client)}, "wrong"},
		{"half, and one of one", with(two, rest{Verdict: "dropped", Share: 0.5}), []outcome{at(pod2, client)},
			"right"},
		{"rejected, but silent", with(two, rest{Verdict: "rejected", Share: 1}), []outcome{silent}, "wrong"},
		{"unknown", with(two, rest{Verdict: "unknown"}), []outcome{silent}, "vague"},
		{"not evaluated", two, []outcome{silent}, "vague"},
		{"exit code 3", with(two, delivered, func(a *answer) { a.Exit = 3 }), []outcome{silent}, "vague"},
		{"failed", with(two, delivered, func(a *answer) { a.Exit = 1 }), []outcome{at(pod2, client)}, "wrong"},
		{"a warning that does not know", with(two, rest{Verdict: "delivered",
			Warnings: []string{"the reply need not pass"}}),
			[]outcome{silent}, "vague"},
		{"a warning that knows", with(two, rest{Verdict: "delivered", Warnings: []string{"the MTU is smaller"}}),
			[]outcome{silent}, "wrong"},
		{"no endpoints", with(answer{Verdict: "reject"}, rest{Verdict: "rejected", Own: true}),
			[]outcome{refused}, "right"},
		{"no connection", with(two, delivered), []outcome{{kind: "unsent"}}, "unsent"},
	} {
		if got := (&world{mode: "nftables"}).judge(q, c.a, c.seen); got.class != c.class {
			t.Errorf("%s: %v, want %s", c.name, got, c.class)
		}
	}
}

// TestKeeps judges a share of connections that the client of a Service with affinity cannot show.
func TestKeeps(t *testing.T) {
	to := netip.AddrPortFrom(addressOf("pod2", false), 8080)
	q := query{from: "client", to: netip.MustParseAddrPort("10.96.0.10:80"), about: "s10, cluster IP"}
	a := answer{Verdict: "balance", Backends: []ofShare{{Address: to, Share: 0.5}},
		Rest: &rest{Verdict: "dropped", Share: 0.5}}
	o := outcome{kind: "answered", at: to, seen: addressOf("client", false), host: "pod2"}
	for affinity, class := range map[bool]string{false: "wrong", true: "right"} {
		w := &world{mode: "nftables", services: []service{{name: "s10", affinity: affinity}}}
		if got := w.judge(q, a, []outcome{o, o}); got.class != class {
			t.Errorf("affinity %v: %v", affinity, got)
		}
	}
}

// TestDeaf judges connections to a port of a backend at which nothing listens.
func TestDeaf(t *testing.T) {
	to := ofShare{Address: netip.AddrPortFrom(addressOf("pod2", false), deaf), Share: 1}
	a := answer{Verdict: "balance", Backends: []ofShare{to}, Rest: &rest{Verdict: "delivered"}}
	for _, c := range []struct {
		mode, kind string
		udp        bool
		class      string
	}{
		{"nftables", "refused", true, "right"},
		{"nftables", "silent", true, "wrong"},
		{"userspace", "refused", false, "right"},
		{"userspace", "silent", true, "right"}, // the proxy's own socket gets the error
		{"userspace", "silent", false, "wrong"},
	} {
		q := query{from: "client", to: netip.MustParseAddrPort("10.96.0.10:80"), udp: c.udp}
		if got := (&world{mode: c.mode}).judge(q, a, []outcome{{kind: c.kind}}); got.class != c.class {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestDeafReply judges a verdict about replies of a program by a host that has none, and sends an
// error.
func TestDeafReply(t *testing.T) {
	q := query{from: "client", to: netip.MustParseAddrPort("10.96.0.10:80"), udp: true}
	for port, class := range map[uint16]string{deaf: "right", served: "wrong"} {
		a := answer{Verdict: "balance", Rest: &rest{Verdict: "dropped", Stage: "reply: forward", Share: 1},
			Backends: []ofShare{{Address: netip.AddrPortFrom(addressOf("pod2", false), port), Share: 1}}}
		if got := (&world{mode: "nftables"}).judge(q, a, []outcome{{kind: "refused"}}); got.class != class {
			t.Errorf("port %d: %v", port, got)
		}
	}
}

// TestOfSome judges answers about some of the connections by a single one, and by many.
func TestOfSome(t *testing.T) {
	q := query{from: "client", to: netip.MustParseAddrPort("10.96.0.10:80"), about: "s10, cluster IP"}
	at := netip.AddrPortFrom(addressOf("pod2", false), served)
	tabled := outcome{kind: "answered", at: at, seen: q.source(), host: "pod2"}
	silent := outcome{kind: "silent"}
	for _, c := range []struct {
		verdict string
		share   float64
		seen    outcome
		n       int
		class   string
	}{
		{"translated", 0.33, tabled, 1, "right"},
		{"translated", 0.33, tabled, many, "right"}, // one of a thousand
		{"translated", 0.5, tabled, many, "wrong"},
		{"translated", 1, tabled, 1, "wrong"},
		{"rejected", 0.5, silent, 1, "right"}, // by another obstacle
		{"rejected", 0.5, silent, many, "wrong"},
		{"rejected", 1, silent, 1, "wrong"},
	} {
		a := answer{Exit: 2, Verdict: "balance", Backends: []ofShare{{Address: at, Share: 1}},
			Rest: &rest{Verdict: c.verdict, Share: c.share}}
		var seen []outcome
		for range c.n {
			seen = append(seen, c.seen)
		}
		if got := (&world{mode: "nftables"}).judge(q, a, seen); got.class != c.class {
			t.Errorf("%+v: %v", c, got)
		}
		a.Rest.NotEvaluated = []string{"a rule"}
		undecided := map[bool]string{true: "vague", false: c.class}[c.class == "wrong" && a.Rest.partial()]
		if got := (&world{mode: "nftables"}).judge(q, a, seen); got.class != undecided {
			t.Errorf("%+v, with a rule that was not evaluated: %v", c, got)
		}
	}
}

// TestSameWorld makes a world twice: a seed and a round say all about it.
func TestSameWorld(t *testing.T) {
	modes := []string{"nftables", "ebpf"}
	for round := range uint64(200) {
		one, two := newWorld(7, round, modes), newWorld(7, round, modes)
		if len(one.mutations) != len(two.mutations) || len(one.queries) != 8 {
			t.Fatalf("round %d: %d and %d mutations, %d queries", round, len(one.mutations), len(two.mutations),
				len(one.queries))
		}
		for i := range one.mutations {
			if one.mutations[i] != two.mutations[i] {
				t.Errorf("round %d: %q and %q", round, one.mutations[i].do, two.mutations[i].do)
			}
		}
		for i := range one.queries {
			if one.queries[i] != two.queries[i] {
				t.Errorf("round %d: %s and %s", round, one.queries[i], two.queries[i])
			}
		}
	}
}
