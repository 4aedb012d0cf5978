//go:build linux

package nftables

import (
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/planetest"
)

// While one family writes a large batch, the other does not listen either: else the kernel would
// write a notification of each element, and lose most of them. Afterwards both receive
// notifications again.
func TestLargeBatchUnnoticed(t *testing.T) {
	inNetns(t)
	four, six := bothPlanes(t)
	planes := map[string]*Plane{"ip": four, "ip6": six}
	for fam, p := range planes {
		tab := planetest.World{Family: p.ip.Family}.Table(3_000, 10)
		reset(t, p, tab)
		if b := p.Stats().Bytes; b < 1<<20 {
			t.Fatalf("%s: the batch has only %d bytes", fam, b)
		}
	}
	for fam, p := range planes {
		select {
		case <-p.Drift():
			t.Errorf("%s: the other family's batch was noticed: %+v", fam, p.mon.take())
		default:
		}
		runNFT(t, "flush set "+fam+" kube-proxy cluster-ips")
		for repaired := 0; repaired < 3_000; { // the notifications arrive in several messages
			<-p.Drift()
			n, err := p.Audit(t.Context(), false)
			if err != nil {
				t.Fatalf("%s: after %d elements were repaired: %v", fam, repaired, err)
			}
			repaired += n
		}
	}
}

// Both families still notice foreign changes while a large batch is written.
func TestForeignChangeDuringLargeBatch(t *testing.T) {
	inNetns(t)
	p, q := bothPlanes(t)
	err := p.ours.WriteUnnoticed(func() (uint32, error) { return p.sock.Generation(t.Context()) }, func() error {
		runNFT(t, "add table ip others; add table ip more")
		runNFT(t, "add table ip third")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Plane{p, q} {
		if !x.mon.take().everything {
			t.Errorf("%s: changes by others went unnoticed", x.ip.Family)
		}
	}
	// The ledger no longer checks whether a closed plane listens.
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	err = p.ours.WriteUnnoticed(func() (uint32, error) { return p.sock.Generation(t.Context()) },
		func() error { return nil })
	if err != nil {
		t.Error(err) // its socket is closed
	}
}

// bothPlanes returns the planes of a process, which share a ledger of writes.
func bothPlanes(t *testing.T) (four, six *Plane) {
	t.Helper()
	var ours selfwrites.Ledger
	return planeOf(t, Config{Family: lb.IPv4, Writes: &ours}), planeOf(t, Config{Family: lb.IPv6, Writes: &ours})
}

// A table written in steps equals one written at once. Until the last step it has chains but no
// hook, and if that step fails the next Reset starts over.
func TestLoadInSteps(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(50, 10)
		tab.Replace(w.Full(1000, 5000, 5, 2, time.Hour))
		p := started(t, w, tab)
		want := dump(t, p)
		c := p.newChange(p.st)
		c.out.DeleteTable()
		if err := p.commit(t.Context(), c.out); err != nil {
			t.Fatal(err)
		}

		q := newPlane(t, w.Family)
		q.loadStep = 64
		snap, gen, err := q.readTable(t.Context(), allSets)
		if err != nil {
			t.Fatal(err)
		}
		// All but the last step.
		if _, _, err := q.plan(t.Context(), snap, tab, tab.All(), gen); err != nil {
			t.Fatal(err)
		}
		if q.Stats().Batches < 5 {
			t.Fatalf("%d batches were sent, want many", q.Stats().Batches)
		}
		fam := nftFamily(w.Family)
		if out := runNFT(t, "list table "+fam+" kube-proxy"); strings.Contains(out, " hook ") ||
			!strings.Contains(out, "chain cluster-5-sticky") {
			t.Errorf("before the last step the table holds:\n%s", out)
		}
		again := newPlane(t, w.Family)
		reset(t, again, tab)
		isDump(t, again, want, "after a load that was cut off")

		c = again.newChange(again.st)
		c.out.DeleteTable()
		if err := again.commit(t.Context(), c.out); err != nil {
			t.Fatal(err)
		}
		reset(t, q, tab)
		isDump(t, q, want, "loaded in steps")
	})
}
