package nftables

import (
	"testing"

	"kube-proxy/lb"
)

// While one family writes a large batch the other does not listen either: else the kernel would write a
// notification of each element, and lose most of them. Afterwards both hear again.
func TestLargeBatchUnheard(t *testing.T) {
	inNetns(t)
	planes := map[string]*Plane{"ip": newPlane(t, lb.IPv4), "ip6": newPlane(t, lb.IPv6)}
	if planes["ip"].ns != planes["ip6"].ns {
		t.Fatal("two planes in one network namespace do not know each other")
	}
	for fam, p := range planes {
		tab := world{p.fam}.table(3_000, 10)
		reset(t, p, tab)
		if b := p.Stats().Bytes; b < 4*deafAbove {
			t.Fatalf("%s: the batch has only %d bytes", fam, b)
		}
	}
	for fam, p := range planes {
		select {
		case <-p.Drift():
			t.Errorf("%s: the other family's batch was heard: %+v", fam, p.mon.take())
		default:
		}
		runNFT(t, "flush set "+fam+" kube-proxy cluster-ips")
		<-p.Drift()
		if n, err := p.Audit(t.Context(), false); err != nil || n != 3_000 {
			t.Errorf("%s: after a foreign change the audit mended %d, error %v; want 3,000", fam, n, err)
		}
	}
}

// What others do while a large batch is written is noticed all the same, by both families.
func TestForeignChangeDuringLargeBatch(t *testing.T) {
	inNetns(t)
	p, q := newPlane(t, lb.IPv4), newPlane(t, lb.IPv6)
	p.ns.Lock()
	err := p.ns.unheard(p.sock, func() error {
		runNFT(t, "add table ip others; add table ip more")
		runNFT(t, "add table ip third")
		return nil
	})
	p.ns.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Plane{p, q} {
		if !x.mon.take().everything {
			t.Errorf("%s: changes by others went unnoticed", x.fam)
		}
	}
}

// A namespace is forgotten with its last plane.
func TestNamespaceForgotten(t *testing.T) {
	inNetns(t)
	p, err := New(Config{Family: lb.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	key := p.ns.key
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	namespaces.Lock()
	defer namespaces.Unlock()
	if ns := namespaces.byKey[key]; ns != nil && key != 0 {
		t.Errorf("%d monitors are still there", len(ns.monitors))
	}
}
