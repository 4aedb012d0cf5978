//go:build linux

package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// vandal makes changes that a program with the same rights could make.
type vandal struct {
	*testing.T
	planetest.World
	*Plane
}

func (v *vandal) iptables(args ...string) { run(v, "", v.Tool.Program, args...) }

// rules returns the rules of a chain, without "-A CHAIN ".
func (v *vandal) rules(table, chain string) (all []string) {
	for line := range strings.Lines(run(v, "", v.Tool.Program, "-t", table, "-S", chain)) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+chain+" "); ok {
			all = append(all, rule)
		}
	}
	return all
}

// find returns the number, from 1, of the first rule of a chain that contains a text.
func (v *vandal) find(table, chain, text string) string {
	i := slices.IndexFunc(v.rules(table, chain), func(r string) bool { return strings.Contains(r, text) })
	if i < 0 {
		v.Fatalf("no rule of chain %s of table %s has %q", chain, table, text)
	}
	return fmt.Sprint(i + 1)
}

// remove deletes the first rule of a chain that contains a text.
func (v *vandal) remove(table, chain, text string) {
	v.iptables("-t", table, "-D", chain, v.find(table, chain, text))
}

// The services of the tests: one with affinity, one without, one without endpoints.
const (
	sticky = iota
	loose
	unserved
)

func portOfService(i int) portID { return portID{fmt.Sprintf("ns/svc-%d:http", i), lb.TCP} }

func chainOf(service int) string { return portOfService(service).chain(xtables.ClusterChain) }

func (v *vandal) sep(i, backend int) string {
	return portOfService(i).chain(xtables.EndpointChain, v.backend(i, backend).String())
}

func (v *vandal) backend(i, n int) netip.AddrPort {
	return netip.AddrPortFrom(v.Addr(100, 10*i+n), 8080)
}

func (v *vandal) clusterIP(i int) netip.AddrPort { return netip.AddrPortFrom(v.Addr(10, i+1), 80) }

// answer is the expected result for a packet: the verdict, and the shares of backends by their
// number.
type answer struct {
	verdict trace.Verdict
	shares  map[int]float64
	masq    bool
	affine  int // the number of the backend, plus 1
	way     string
}

func all(masq bool) answer {
	return answer{verdict: trace.Balance, shares: map[int]float64{0: 1. / 3, 1: 1. / 3, 2: 1. / 3}, masq: masq}
}

// meets checks what a packet to a cluster IP meets.
func (v *vandal) meets(what string, service int, from trace.Packet, want answer) {
	v.Helper()
	from.To, from.Proto = v.clusterIP(service), lb.TCP
	got, err := v.TracePacket(v.Context(), from)
	if err != nil {
		v.Fatal(err)
	}
	same := got.Verdict == want.verdict && len(got.Backends) == len(want.shares) && got.Masquerade == want.masq
	for n, share := range want.shares {
		same = same && slices.ContainsFunc(got.Backends, func(b trace.Backend) bool {
			return b.Address == v.backend(service, n) && b.Share > share-0.001 && b.Share < share+0.001
		})
	}
	if want.affine > 0 {
		same = same && got.Affine == v.backend(service, want.affine-1)
	} else {
		same = same && !got.Affine.IsValid()
	}
	if way := strings.Join(got.Way, "\n"); !same || !strings.Contains(way, want.way) {
		v.Errorf("%s: %v: want %+v, got %s", what, from, want, show(got))
	}
}

// After any foreign change of the chains, TracePacket reports the kernel's new treatment of a
// packet, and Differences names the change. Foreign rules are no difference, but may affect
// packets. After a Reset nothing differs.
func TestSabotageIsSeen(t *testing.T) {
	eachKind(t, func(t *testing.T, w planetest.World, cfg Config) {
		p := newPlane(t, cfg)
		v := &vandal{t, w, p}
		table := w.Table(0, 0)
		for i, sticks := range []time.Duration{sticky: time.Hour, loose: 0} {
			table.Replace(w.Full(i, 10*i, 3, 2, sticks))
		}
		table.Replace(w.ClusterIP(unserved, 0, 0))
		reset(t, p, table)
		pod := trace.Packet{From: netip.AddrPortFrom(w.Addr(100, 999), 0), In: "veth1"}
		host := trace.Packet{From: netip.AddrPortFrom(w.Addr(192, 1), 0), Host: true}
		healthy := func(what string) {
			t.Helper()
			v.meets(what, loose, pod, all(false))
			v.meets(what, loose, host, all(true))
			v.meets(what, unserved, pod, answer{verdict: trace.Reject})
			v.meets(what, unserved, host, answer{verdict: trace.Reject})
			for _, d := range planetest.Differences(t, p, table) {
				t.Errorf("%s: differs: %+v", what, d)
			}
		}
		healthy("at first")
		balance := func(shares map[int]float64) answer { return answer{verdict: trace.Balance, shares: shares} }
		theirs := w.Addr(100, 12345)
		for _, c := range []struct {
			name    string
			do      func()
			service int
			from    trace.Packet
			want    answer
			// For each difference a part of its object, and of the wanted or existing content.
			differs []string
			undo    func()
		}{
			{name: "an endpoint's rule is deleted", do: func() { v.remove("nat", v.sep(loose, 0), "DNAT") },
				service: loose, from: pod,
				want:    answer{verdict: trace.Balance, shares: map[int]float64{1: 0.5, 2: 0.5}},
				differs: []string{"rule of chain " + v.sep(loose, 0) + " of table nat (ns/svc-1:http)"}},
			{name: "the last endpoint's chain is emptied",
				do: func() { v.iptables("-t", "nat", "-F", v.sep(loose, 2)) }, service: loose, from: pod,
				want: answer{verdict: trace.Balance, shares: map[int]float64{0: 1. / 3, 1: 1. / 3},
					way: "0.3333 end otherwise: pass"}, differs: []string{v.sep(loose, 2), v.sep(loose, 2)}},
			{name: "a Service's chain is emptied", do: func() { v.iptables("-t", "nat", "-F", chainOf(loose)) },
				service: loose, from: pod,
				want: answer{verdict: trace.Pass}, differs: slices.Repeat([]string{chainOf(loose)}, 4)},
			{name: "the Service's rule is deleted", do: func() { v.remove("nat", xtables.Services, chainOf(loose)) },
				service: loose, from: pod,
				want: answer{verdict: trace.Pass}, differs: []string{"rule of chain KUBE-SERVICES of table nat"}},
			{name: "the refusal is deleted", do: func() { v.remove("filter", xtables.Services, "has no endpoints") },
				service: unserved, from: pod,
				want: answer{verdict: trace.Pass}, differs: []string{"rule of chain KUBE-SERVICES of table filter"}},
			{name: "PREROUTING leads nowhere", do: func() { v.remove("nat", "PREROUTING", xtables.Services) },
				service: loose, from: pod,
				want: answer{verdict: trace.Pass}, differs: []string{"rule of chain PREROUTING of table nat"}},
			{name: "OUTPUT leads nowhere", do: func() { v.remove("nat", "OUTPUT", xtables.Services) }, service: loose,
				from: host, want: answer{verdict: trace.Pass}, differs: []string{"rule of chain OUTPUT of table nat"}},
			{name: "OUTPUT leads nowhere, others do not care",
				do: func() { v.remove("nat", "OUTPUT", xtables.Services) }, service: loose, from: pod,
				want: all(false), differs: []string{"rule of chain OUTPUT of table nat"}},
			{name: "FORWARD refuses no client", do: func() { v.remove("filter", "FORWARD", xtables.Services) },
				service: unserved, from: pod,
				want: answer{verdict: trace.Pass}, differs: []string{"rule of chain FORWARD of table filter"}},
			{name: "the node's packets are refused nowhere",
				do: func() { v.remove("filter", "OUTPUT", xtables.Services) }, service: unserved, from: host,
				want: answer{verdict: trace.Pass}, differs: []string{"rule of chain OUTPUT of table filter"}},
			{name: "POSTROUTING masquerades no packet",
				do: func() { v.remove("nat", "POSTROUTING", xtables.Postrouting) }, service: loose, from: host,
				want: all(false), differs: []string{"rule of chain POSTROUTING of table nat"}},
			{name: "INPUT leads nowhere", do: func() { v.remove("filter", "INPUT", xtables.ExternalServices) },
				service: loose, from: pod, want: all(false), differs: []string{"rule of chain INPUT of table filter"}},
			{name: "no packet is marked", do: func() { v.iptables("-t", "nat", "-F", xtables.MarkMasq) },
				service: loose, from: host, want: all(false), differs: []string{"chain KUBE-MARK-MASQ"}},
			{name: "another mark", do: func() {
				v.iptables("-t", "nat", "-R", xtables.MarkMasq, "1", "-j", "MARK", "--set-xmark", "0x8/0x8")
			}, service: loose, from: host,
				want: all(false), differs: []string{"chain KUBE-MARK-MASQ"}},
			{name: "a chance is another", do: func() {
				v.iptables("-t", "nat", "-R", chainOf(loose), v.find("nat", chainOf(loose), v.sep(loose, 0)), "-m",
					"statistic", "--mode", "random", "--probability", "0.5", "-j", v.sep(loose, 0))
			}, service: loose, from: pod, want: balance(map[int]float64{0: 0.5, 1: 0.25, 2: 0.25}),
				differs: []string{chainOf(loose)}},
			{name: "an endpoint is another", do: func() {
				v.iptables("-t", "nat", "-R", v.sep(loose, 1), "2", "-p", "tcp", "-j", "DNAT", "--to-destination",
					v.backend(loose, 7).String())
			}, service: loose, from: pod, want: balance(map[int]float64{0: 1. / 3, 7: 1. / 3, 2: 1. / 3}),
				differs: []string{v.sep(loose, 1)}},
			{name: "rules in another order", do: func() {
				last := v.rules("nat", chainOf(loose))
				v.iptables("-t", "nat", "-D", chainOf(loose), fmt.Sprint(len(last)))
				v.iptables("-t", "nat", "-I", chainOf(loose), "1", "-m", "comment", "--comment", "mine", "-j",
					v.sep(loose, 2))
			}, service: loose, from: pod, want: balance(map[int]float64{2: 1}),
				differs: []string{"order of the rules of chain " + chainOf(loose)}},
			{name: "a rule more", do: func() {
				v.iptables("-t", "nat", "-I", chainOf(loose), "-j", "RETURN")
			}, service: loose, from: pod,
				want: answer{verdict: trace.Pass}, differs: []string{chainOf(loose)}},
			{name: "the table is emptied", do: func() { v.iptables("-t", "nat", "-F") }, service: loose, from: pod,
				want: answer{verdict: trace.Pass}, differs: nil},
			{name: "an unknown Service", do: func() {
				v.iptables("-t", "nat", "-N", "KUBE-SVC-UNKNOWN")
				v.iptables("-t", "nat", "-A", "KUBE-SVC-UNKNOWN", "-j", "RETURN")
			}, service: loose, from: pod, want: all(false), differs: []string{"chain KUBE-SVC-UNKNOWN of table nat"}},

			{name: "others forward nothing", do: func() { v.iptables("-P", "FORWARD", "DROP") }, service: loose,
				from: pod, want: answer{verdict: trace.Drop, way: "-t filter -P FORWARD DROP"}, undo: func() {
					v.iptables("-P", "FORWARD", "ACCEPT")
				}},
			{name: "others forward what is not understood", do: func() {
				v.iptables("-P", "FORWARD", "DROP")
				v.iptables("-A", "FORWARD", "-m", "limit", "--limit", "1/s", "-j", "ACCEPT")
			}, service: loose, from: pod, want: answer{verdict: trace.Balance, shares: all(false).shares,
				way: "-P FORWARD DROP (not judged"}, undo: func() {
				v.iptables("-P", "FORWARD", "ACCEPT")
				v.remove("filter", "FORWARD", "limit")
			}},
			{name: "others only count", do: func() { v.iptables("-t", "nat", "-I", "PREROUTING") }, service: loose,
				from: pod, want: all(false), undo: func() { v.iptables("-t", "nat", "-D", "PREROUTING", "1") }},
			{name: "others drop what goes to an endpoint", do: func() {
				v.iptables("-I", "FORWARD", "-d", v.backend(loose, 1).Addr().String(), "-j", "DROP")
			}, service: loose,
				from: pod, want: balance(map[int]float64{0: 1. / 3, 2: 1. / 3}), undo: func() {
					v.remove("filter", "FORWARD", "-j DROP")
				}},
			{name: "others let pass what is to be refused", do: func() {
				v.iptables("-I", "FORWARD", "-d", v.clusterIP(unserved).Addr().String(), "-j", "ACCEPT")
			},
				service: unserved, from: pod, want: answer{verdict: trace.Pass}, undo: func() {
					v.remove("filter", "FORWARD", "-j ACCEPT")
				}},
			{name: "others translate first", do: func() {
				v.iptables("-t", "nat", "-I", "PREROUTING", "-p", "tcp", "-i", "veth+", "-j", "DNAT",
					"--to-destination", v.backend(loose, 9).String())
			}, service: loose, from: pod, want: balance(map[int]float64{9: 1}), undo: func() {
				v.remove("nat", "PREROUTING", "DNAT")
			}},
			{name: "others do not match", do: func() {
				v.iptables("-t", "nat", "-N", "THEIRS")
				v.iptables("-t", "nat", "-I", "PREROUTING", "!", "-s", theirs.String(), "-j", "THEIRS")
				v.iptables("-t", "nat", "-A", "THEIRS", "-j", "ACCEPT")
			}, service: loose, from: pod, want: answer{verdict: trace.Pass, way: "-t nat -A THEIRS -j ACCEPT"},
				undo: func() {
					v.remove("nat", "PREROUTING", "THEIRS")
				}},
		} {
			c.do()
			v.meets(c.name, c.service, c.from, c.want)
			diffs := planetest.Differences(t, p, table)
			for i, d := range diffs {
				if c.undo != nil || c.name != "the table is emptied" &&
					(i >= len(c.differs) || !strings.Contains(d.Object, c.differs[i])) {
					t.Errorf("%s: difference %d: %+v, want %q", c.name, i, d, c.differs)
				}
			}
			if len(diffs) < len(c.differs) || c.name == "the table is emptied" && len(diffs) < 30 {
				t.Errorf("%s: differs: %+v, want %q", c.name, diffs, c.differs)
			}
			if c.undo != nil {
				c.undo()
			} else {
				reset(t, p, table)
			}
			healthy("after: " + c.name)
		}
		v.remembered(pod, table)
	})
}

// remembered: a client in a list goes to the same endpoint, until it is removed from the list, and
// as long as the rule says (SV-18).
func (v *vandal) remembered(pod trace.Packet, table *lb.Table) {
	list := "/proc/thread-self/net/xt_recent/" + v.sep(sticky, 1)
	write := func(what string) {
		v.Helper()
		if err := os.WriteFile(list, []byte(what+pod.From.Addr().String()), 0); err != nil {
			v.Fatal(err)
		}
	}
	v.meets("no client is in a list", sticky, pod, all(false))
	write("+")
	remembered := all(false)
	remembered.affine, remembered.way = 2, "(the client is remembered, last seen 0 s ago)"
	v.meets("remembered", sticky, pod, remembered)
	other := pod
	other.From = netip.AddrPortFrom(v.Addr(100, 998), 0)
	v.meets("another client", sticky, other, all(false))
	if d := planetest.Differences(v.T, v.Plane, table); len(d) > 0 {
		v.Errorf("a client that is remembered is no difference: %+v", d)
	}
	write("-")
	v.meets("forgotten", sticky, pod, all(false))
}
