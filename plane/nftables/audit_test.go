//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// noticed waits until the plane has noticed a foreign change.
func noticed(t *testing.T, p *Plane) {
	t.Helper()
	select {
	case <-p.Drift():
	case <-time.After(time.Minute):
		t.Fatal("the foreign change was not noticed")
	}
}

// Changes of our table by other programs are noticed and repaired, with who made them, and nothing
// else is touched (ST-05).
func TestDrift(t *testing.T) {
	for _, tc := range []struct{ name, do, by string }{
		{"element deleted", "delete element T services { 10.0.0.1 . tcp . 80 }", "elements of set services"},
		{"backend deleted", "delete element T backends { ID . 0x00000001 }", "elements of set backends"},
		{"backend added", "add element T backends { ID . 0x00000063 : 192.0.2.99 . 99 }", ""},
		{"frontend added", "add element T services { 10.9.9.9 . tcp . 80 : 0x000000c4 }", ""},
		{"members deleted", "flush map T member-backends", ""},
		{"set flushed", "flush map T set-shapes", ""},
		{"cluster ip deleted", "delete element T cluster-ips { 10.0.0.1 }", ""},
		{"cluster ip added", "add element T cluster-ips { 10.7.7.7 }", ""},
		{"equal bytes added", "add element T equal-bytes { 7 . 8 }", ""},
		{"equal bytes deleted", "delete element T equal-bytes { 7 . 7 }", ""},
		{"source range deleted", "delete element T source-ranges { 0x00000108 . 100.0.0.0 }", ""},
		{"NodePort deleted", "delete element T nodeports { tcp . 30011 }", ""},
		{"verdict deleted", "delete element T nat-classes { 0x000000c4 }", ""},
		{"rule added", "add rule T nat-prerouting counter accept", "rules of chain nat-prerouting"},
		{"rule inserted", "insert rule T cluster return", ""},
		{"chain flushed", "flush chain T nat-frontends", "rules of chain nat-frontends"},
		{"foreign chain", "add chain T mine; add rule T mine accept", "chain mine"},
		{"foreign set", "add set T mine { type ipv4_addr; }", "set mine"},
		{"numbers changed", "delete element T reserved { 1 }; add element T reserved { 9 : 9 }",
			"elements of set reserved"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := planetest.World{Family: lb.IPv4}
			tab := w.Table(5, 3)
			tab.Replace(w.Full(10, 500, 5, 2, 0))
			tab.Replace(w.Full(11, 600, 5, 0, 3*time.Hour))
			p := started(t, w, tab)
			runNFT(t, "add table ip others; add chain ip others mine")
			want := dump(t, p)
			sent := p.Stats()

			id := p.st.sets[lb.SetID{Service: "ns/svc-2:http", Proto: lb.TCP, Scope: lb.Cluster}].id
			runNFT(t, strings.NewReplacer(" T ", " ip kube-proxy ", "ID", fmt.Sprint(id)).Replace(tc.do))
			noticed(t, p)
			n, err := p.Audit(t.Context(), false)
			if err != nil || n == 0 {
				t.Fatalf("repaired %d, error %v", n, err)
			}
			if by := p.ChangedBy(); !strings.HasPrefix(by, "nft (PID ") || !strings.Contains(by, tc.by) {
				t.Errorf("changed by %q, want nft and %q", by, tc.by)
			}
			isDump(t, p, want)
			// A chain has at most nine rules.
			if s := p.Stats().minus(sent); s.Batches != 1 || s.Messages > 12 {
				t.Errorf("repairing took %+v", s)
			}
			if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
				t.Errorf("a full audit then repaired %d, error %v", n, err)
			}
			if !strings.Contains(runNFT(t, "list tables"), "others") {
				t.Error("a foreign table is gone")
			}
		})
	}
}

// A removed table, or one with foreign sets, requires a Reset. So does a change or a probe that the
// kernel refuses because its state differs from ours. A failed probe creates nothing.
func TestStateLost(t *testing.T) {
	for name, do := range map[string]string{
		"deleted":  "delete table ip kube-proxy",
		"replaced": "delete table ip kube-proxy; add table ip kube-proxy; add chain ip kube-proxy mine",
		"flushed":  "flush ruleset",
		"asleep":   "add table ip kube-proxy { flags dormant; }",
	} {
		t.Run(name, func(t *testing.T) {
			w := planetest.World{Family: lb.IPv4}
			tab := w.Table(5, 3)
			p := started(t, w, tab)
			want := dump(t, p)
			runNFT(t, do)
			noticed(t, p)
			if _, err := p.Audit(t.Context(), false); !errors.Is(err, plane.ErrStateLost) {
				t.Errorf("audit: error %v", err)
			}
			left := runNFT(t, "list", "ruleset")
			if err := p.Probe(t.Context()); name != "asleep" && !errors.Is(err, plane.ErrStateLost) {
				t.Errorf("probe: error %v", err)
			}
			if now := runNFT(t, "list", "ruleset"); now != left {
				t.Errorf("a proof that failed changed\n%s\nto\n%s", left, now)
			}
			changes, _ := tab.Replace(w.ClusterIP(1, 100, 2))
			if _, err := p.Apply(t.Context(), changes); name != "asleep" && !errors.Is(err, plane.ErrStateLost) {
				t.Errorf("apply: error %v", err)
			}
			tab.Replace(w.ClusterIP(1, 3, 3))
			reset(t, p, tab)
			isDump(t, p, want)
		})
	}
}

// A change of the node is one transaction, so no packet meets a part of it.
func TestSetNode(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	p := started(t, w, w.Table(3, 3))
	a, b := w.Node(), lb.Node{NodePorts: w.Node().ServiceCIDRs}
	b.Pods.InterfacePrefix = "veth"
	for _, n := range []lb.Node{b, a, {}, a} {
		sent := p.Stats().Batches
		if err := p.SetNode(t.Context(), n); err != nil || p.Stats().Batches != sent+1 {
			t.Errorf("%+v took %d transactions, error %v", n, p.Stats().Batches-sent, err)
		}
	}
}

// A map with very many backends is read element by element. Restart and audit work as usual.
func TestBigMap(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(300, 10)
		tab.Replace(w.Full(1000, 5000, 5, 2, time.Hour))
		p := started(t, w, tab)
		want := dump(t, p)
		q := newPlane(t, w.Family)
		p.bigMap, q.bigMap, p.window = 100, 100, 100
		reset(t, q, tab)
		if n := q.Stats().Batches; n != 0 {
			t.Errorf("a restart sent %d batches", n)
		}
		fam := nftFamily(w.Family)
		if err := p.mon.Listen(false); err != nil {
			t.Fatal(err)
		}
		var ids []string
		for id, s := range p.st.sets {
			if strings.HasSuffix(id.Service, "7:http") {
				ids = append(ids, fmt.Sprintf("%d . 3, %d . 5", s.id, s.id))
			}
		}
		runNFT(t, fmt.Sprintf("delete element %s kube-proxy backends { %s }", fam, strings.Join(ids, ", ")))
		repaired := 0
		for range p.elements()/p.window + 2 {
			n, err := p.Audit(t.Context(), true)
			repaired += n
			if err != nil {
				t.Fatal(err)
			}
		}
		if repaired != 2*len(ids) {
			t.Errorf("the audits repaired %d, want %d", repaired, 2*len(ids))
		}
		isDump(t, p, want)
		runNFT(t, fmt.Sprintf("delete element %s kube-proxy backends { %s }", fam, strings.Join(ids, ", ")))
		reset(t, q, tab)
		isDump(t, q, want, "after a Reset")
	})
}

// A full audit compares one window of a large set, and the next audit continues after it. Our own
// writes in between are no drift. Foreign changes are found wherever they are, after as many audits
// as the elements have windows (TN-31). One window may hold all.
func TestAuditsOfALargeSet(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(3, 2)
		p := started(t, w, tab)
		p.window = map[lb.Family]int{lb.IPv4: 100, lb.IPv6: 10_000}[w.Family]
		apply(t, p, planetest.Changes(tab.Replace(w.Full(9, 100, 1000, 0, 0))))
		audit := func() int {
			n, err := p.Audit(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		for range 30 {
			if n := audit(); n != 0 {
				t.Errorf("repaired %d without a foreign change", n)
			}
		}
		runNFT(t, "flush map "+p.ip.Name()+" kube-proxy backends")
		<-p.Drift()
		p.mon.take() // as if no notification had arrived
		repaired := 0
		for i := range 30 {
			n := audit()
			repaired += n
			if n > p.window+10 {
				t.Errorf("audit %d repaired %d elements, want a window of %d at most", i, n, p.window)
			}
			apply(t, p, planetest.Changes(tab.Replace(w.ClusterIP(20+i, 5000+i, 3))))
		}
		if repaired < 1000 || repaired > 1100 {
			t.Errorf("repaired %d elements of some 1,000", repaired)
		}
		isFresh(t, p, tab)
	})
}
