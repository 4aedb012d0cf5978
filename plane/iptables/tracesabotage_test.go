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
	"kube-proxy/nodetrace"
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
	got, err := v.TracePacket(v.Context(), from, nodetrace.Kernel)
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
	eachOnce(t, func(t *testing.T, w planetest.World, cfg Config) {
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
		passes := answer{verdict: trace.Pass}
		balance := func(shares map[int]float64) answer { return answer{verdict: trace.Balance, shares: shares} }
		does := func(commands ...string) func() {
			return func() {
				for _, c := range commands {
					v.iptables(strings.Fields(c)...)
				}
			}
		}
		removes := func(table, chain, text string) func() { return func() { v.remove(table, chain, text) } }
		svc, unknown, third := chainOf(loose), "KUBE-SVC-UNKNOWN", 1./3
		for _, c := range []struct {
			name string
			do   func()
			// The packet is a pod's to the loose Service; with host the node's, with unserved to
			// that Service.
			host, unserved bool
			want           answer
			// For each difference a part of its object, and of the wanted or existing content.
			differs []string
			undo    func()
		}{
			{name: "an endpoint's rule is deleted", do: removes("nat", v.sep(loose, 0), "DNAT"),
				want:    balance(map[int]float64{1: 0.5, 2: 0.5}),
				differs: []string{"rule of chain " + v.sep(loose, 0) + " of table nat (ns/svc-1:http)"}},
			{name: "the last endpoint's chain is emptied", do: does("-t nat -F " + v.sep(loose, 2)),
				want: answer{verdict: trace.Balance, shares: map[int]float64{0: third, 1: third},
					way: "0.3333 end otherwise: pass"}, differs: []string{v.sep(loose, 2), v.sep(loose, 2)}},
			{name: "a Service's chain is emptied", do: does("-t nat -F " + svc), want: passes,
				differs: slices.Repeat([]string{svc}, 4)},
			{name: "the Service's rule is deleted", do: removes("nat", xtables.Services, svc), want: passes,
				differs: []string{"rule of chain KUBE-SERVICES of table nat"}},
			{name: "the refusal is deleted", do: removes("filter", xtables.Services, "has no endpoints"),
				unserved: true, want: passes, differs: []string{"rule of chain KUBE-SERVICES of table filter"}},
			{name: "PREROUTING leads nowhere", do: removes("nat", "PREROUTING", xtables.Services), want: passes,
				differs: []string{"rule of chain PREROUTING of table nat"}},
			{name: "OUTPUT leads nowhere", do: removes("nat", "OUTPUT", xtables.Services), host: true, want: passes,
				differs: []string{"rule of chain OUTPUT of table nat"}},
			{name: "OUTPUT leads nowhere, others do not care", do: removes("nat", "OUTPUT", xtables.Services),
				want: all(false), differs: []string{"rule of chain OUTPUT of table nat"}},
			{name: "FORWARD refuses no client", do: removes("filter", "FORWARD", xtables.Services), unserved: true,
				want: passes, differs: []string{"rule of chain FORWARD of table filter"}},
			{name: "the node's packets are refused nowhere", do: removes("filter", "OUTPUT", xtables.Services),
				host: true, unserved: true, want: passes, differs: []string{"rule of chain OUTPUT of table filter"}},
			{name: "POSTROUTING masquerades no packet", do: removes("nat", "POSTROUTING", xtables.Postrouting),
				host: true, want: all(false), differs: []string{"rule of chain POSTROUTING of table nat"}},
			{name: "INPUT leads nowhere", do: removes("filter", "INPUT", xtables.ExternalServices), want: all(false),
				differs: []string{"rule of chain INPUT of table filter"}},
			{name: "no packet is marked", do: does("-t nat -F " + xtables.MarkMasq), host: true, want: all(false),
				differs: []string{"chain KUBE-MARK-MASQ"}},
			{name: "another mark", do: does("-t nat -R " + xtables.MarkMasq + " 1 -j MARK --set-xmark 0x8/0x8"),
				host: true, want: all(false), differs: []string{"chain KUBE-MARK-MASQ"}},
			{name: "a chance is another", do: func() {
				does("-t nat -R " + svc + " " + v.find("nat", svc, v.sep(loose, 0)) +
					" -m statistic --mode random --probability 0.5 -j " + v.sep(loose, 0))()
			}, want: balance(map[int]float64{0: 0.5, 1: 0.25, 2: 0.25}), differs: []string{svc}},
			{name: "an endpoint is another", do: does("-t nat -R " + v.sep(loose, 1) +
				" 2 -p tcp -j DNAT --to-destination " + v.backend(loose, 7).String()),
				want: balance(map[int]float64{0: third, 7: third, 2: third}), differs: []string{v.sep(loose, 1)}},
			{name: "rules in another order", do: func() {
				last := v.rules("nat", svc)
				does(fmt.Sprintf("-t nat -D %s %d", svc, len(last)),
					"-t nat -I "+svc+" 1 -m comment --comment mine -j "+v.sep(loose, 2))()
			}, want: balance(map[int]float64{2: 1}), differs: []string{"order of the rules of chain " + svc}},
			{name: "a rule more", do: does("-t nat -I " + svc + " -j RETURN"), want: passes, differs: []string{svc}},
			{name: "the table is emptied", do: does("-t nat -F"), want: passes},
			{name: "an unknown Service", do: does("-t nat -N "+unknown, "-t nat -A "+unknown+" -j RETURN"),
				want: all(false), differs: []string{"chain KUBE-SVC-UNKNOWN of table nat"}},

			{name: "others forward nothing", do: does("-P FORWARD DROP"), undo: does("-P FORWARD ACCEPT"),
				want: answer{verdict: trace.Drop, way: "-t filter -P FORWARD DROP"}},
			{name: "others forward what is not understood",
				do: does("-P FORWARD DROP", "-A FORWARD -m limit --limit 1/s -j ACCEPT"),
				undo: func() {
					v.iptables("-P", "FORWARD", "ACCEPT")
					v.remove("filter", "FORWARD", "limit")
				},
				want: answer{verdict: trace.Balance, shares: all(false).shares, way: "-P FORWARD DROP (not judged"}},
			{name: "others only count", do: does("-t nat -I PREROUTING"), undo: does("-t nat -D PREROUTING 1"),
				want: all(false)},
			{name: "others drop what goes to an endpoint",
				do:   does("-I FORWARD -d " + v.backend(loose, 1).Addr().String() + " -j DROP"),
				undo: removes("filter", "FORWARD", "-j DROP"), want: balance(map[int]float64{0: third, 2: third})},
			{name: "others let pass what is to be refused",
				do:   does("-I FORWARD -d " + v.clusterIP(unserved).Addr().String() + " -j ACCEPT"),
				undo: removes("filter", "FORWARD", "-j ACCEPT"), unserved: true, want: passes},
			{name: "others translate first", do: does("-t nat -I PREROUTING -p tcp -i veth+ -j DNAT --to-destination " +
				v.backend(loose, 9).String()),
				undo: removes("nat", "PREROUTING", "DNAT"), want: balance(map[int]float64{9: 1})},
			{name: "others do not match", do: does("-t nat -N THEIRS", "-t nat -I PREROUTING ! -s "+
				w.Addr(100, 12345).String()+" -j THEIRS", "-t nat -A THEIRS -j ACCEPT"),
				undo: removes("nat", "PREROUTING", "THEIRS"),
				want: answer{verdict: trace.Pass, way: "-t nat -A THEIRS -j ACCEPT"}},
		} {
			c.do()
			service, from := loose, pod
			if c.unserved {
				service = unserved
			}
			if c.host {
				from = host
			}
			v.meets(c.name, service, from, c.want)
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
