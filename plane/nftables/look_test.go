//go:build linux

package nftables

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/planetest"
	"kube-proxy/trace"
)

var _ mode.Looker = (*Plane)(nil)

// looks is a plane with a table in which each kind of row is.
type looks struct {
	planetest.World
	*Plane
	t    *testing.T
	want *lb.Table
}

func newLooks(t *testing.T, w planetest.World) *looks {
	inNetns(t)
	l := &looks{w, newPlane(t, w.Family), t, &lb.Table{Node: w.Node()}}
	l.want.Replace(w.Full(0, 0, 3, 1, 0))          // all kinds, with an external policy Local
	l.want.Replace(w.Full(1, 10, 3, 0, 0))         // nobody local
	l.want.Replace(w.Full(2, 20, 4, 2, time.Hour)) // session affinity
	l.want.Replace(w.ClusterIP(3, 0, 0))           // nobody
	l.want.Replace(w.ClusterIP(4, 40, 21))         // more backends than the balancer draws from exactly
	reset(t, l.Plane, l.want)
	return l
}

// packets are telling ones, by name.
func (l *looks) packets() map[string]trace.Packet {
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

func (l *looks) follow(p trace.Packet) trace.Kernel {
	l.t.Helper()
	k, err := l.Follow(l.t.Context(), p)
	if err != nil {
		l.t.Fatal(err)
	}
	return k
}

// answer is what a test compares of an answer.
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

// balance is the answer of a set of backends.
func (l *looks) balance(first, n int, masquerade bool) string {
	k := trace.Kernel{Verdict: trace.Balance, Masquerade: masquerade}
	for i := range n {
		k.Backends = append(k.Backends, trace.Backend{Address: netip.AddrPortFrom(l.Addr(100, first+i), 8080), Share: 1 / float64(n)})
	}
	return answer(k)
}

func (l *looks) differences() (all []trace.Difference) {
	l.t.Helper()
	if err := l.Differences(l.t.Context(), l.want, func(d trace.Difference) bool { all = append(all, d); return true }); err != nil {
		l.t.Fatal(err)
	}
	return all
}

// What the kernel's table makes of each kind of packet, with the words of nft.
func TestFollow(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		l := newLooks(t, w)
		want := map[string]string{
			"pod to cluster IP 0": l.balance(0, 3, false), "node to cluster IP 0": l.balance(0, 3, true),
			"pod to cluster IP 1": l.balance(10, 3, false), "node to cluster IP 1": l.balance(10, 3, true),
			"pod to cluster IP 2": l.balance(20, 4, false), "node to cluster IP 2": l.balance(20, 4, true),
			"pod to cluster IP 3": "reject", "node to cluster IP 3": "reject",
			"pod to cluster IP 4": l.balance(40, 21, false), "node to cluster IP 4": l.balance(40, 21, true),
			"outside to NodePort 0": l.balance(0, 1, false), "pod to NodePort 0": l.balance(0, 3, false),
			"outside to NodePort 1": "drop", "pod to NodePort 1": l.balance(10, 3, false),
			"outside to NodePort 2": l.balance(20, 2, false), "pod to NodePort 2": l.balance(20, 4, false),
			"outside to external IP 0": l.balance(0, 1, false), "outside to external IP 1": "drop", "outside to external IP 2": l.balance(20, 2, false),
			"outside to load balancer 0": "drop", "outside to load balancer 1": "drop", "outside to load balancer 2": "drop",
			"pod to load balancer 0": l.balance(0, 3, false), "pod to load balancer 1": l.balance(10, 3, false), "pod to load balancer 2": l.balance(20, 4, false),
			"outside to no NodePort": "pass", "pod to another port": "reject", "pod to an unknown cluster IP": "drop", "pod to a stranger": "pass",
			"a backend to itself": l.balance(10, 3, false),
		}
		packets := l.packets()
		if len(packets) != len(want) {
			t.Errorf("%d packets, and %d answers", len(packets), len(want))
		}
		for name, p := range packets {
			k := l.follow(p)
			if got := answer(k); got != want[name] {
				t.Errorf("%s: %s, want %s\n%s", name, got, want[name], strings.Join(k.Way, "\n"))
			}
			sum := 0.0
			for _, b := range k.Backends {
				sum += b.Share
			}
			if k.Verdict == trace.Balance && math.Abs(sum-1) > 1e-6 {
				t.Errorf("%s: shares are %f together", name, sum)
			}
		}
		if all := l.differences(); len(all) != 0 {
			t.Errorf("after a Reset these differ: %+v", all)
		}
	})
}

var _ = context.Background
var _ = slices.Sort[[]int]
