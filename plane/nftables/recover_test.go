//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/selfwrites"
	"kube-proxy/test/planetest"
)

// A frontend that the kernel has under an id, and that the plane can no longer hold, is the only
// one that a Reset loses.
func TestResetRefusesARowThatTheKernelHas(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(5, 3)
		p := started(t, w, tab)
		o, fronts := w.ClusterIP(2, 6, 4)
		tab.Replace(o, fronts)
		p.maxSlots = 3
		for range 2 {
			res, err := p.Reset(t.Context(), tab)
			if err != nil || len(res.Later) != 1 || res.Later[0] != fronts[0].Key || len(res.Dropped) != 0 {
				t.Fatalf("%+v, error %v, want one row left for later, %s", res, err, fronts[0].Key)
			}
			if _, err := p.Apply(t.Context(), []lb.Change{{Key: fronts[0].Key, New: fronts[0]}}); err == nil ||
				!strings.Contains(err.Error(), fronts[0].Key.String()) || !strings.Contains(err.Error(), "4 backends") {
				t.Errorf("applied: error %v does not name the row and the reason", err)
			}
		}
		tab.Replace(w.ClusterIP(9, 40, 3))
		rest := &lb.Table{Node: tab.Node}
		for _, i := range []int{0, 1, 3, 4} {
			rest.Replace(w.ClusterIP(i, i*3, 3))
		}
		isFresh(t, p, rest)
	})
}

// A full audit of a large table compares a part of it, and keeps the notes about the rest.
func TestFullAuditRepairsNoticedDrift(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(50, 3)
		p := started(t, w, tab)
		p.window = 1
		want := dump(t, p)
		fam := nftFamily(w.Family)
		id := p.st.sets[lb.SetID{Service: "ns/svc-2:http", Proto: lb.TCP, Scope: lb.Cluster}].id
		foreign := w.Addr(9, 9).String()
		runNFT(t, fmt.Sprintf(`delete element %[1]s kube-proxy backends { %[2]d . 1 }
			add element %[1]s kube-proxy services { %[3]s . tcp . 80 : 0x4 }
			add element %[1]s kube-proxy equal-bytes { 1 . 2 }`, fam, id, foreign))
		noticed(t, p)
		if n, err := p.Audit(t.Context(), true); err != nil || n < 3 {
			t.Errorf("repaired %d, error %v", n, err)
		}
		isDump(t, p, want)
	})
}

// A failed audit keeps its notes for the next one.
func TestFailedAuditRemembers(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(5, 3)
	p := started(t, w, tab)
	want := dump(t, p)
	runNFT(t, "flush map ip kube-proxy services; flush chain ip kube-proxy cluster")
	noticed(t, p)
	sock := p.sock
	p.sock = closedSocket(t)
	if _, err := p.Audit(t.Context(), false); err == nil {
		t.Fatal("an audit without a socket did not fail")
	}
	p.sock = sock
	noticed(t, p)
	if n, err := p.Audit(t.Context(), false); err != nil || n != 6 {
		t.Errorf("repaired %d, error %v", n, err)
	}
	isDump(t, p, want)
}

func closedSocket(t *testing.T) *wire.Socket {
	t.Helper()
	s, err := wire.Open()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	return s
}

// A conflicting element that no reading shows does not block Resets for ever: two are refused, and
// the third replaces the table. Readings are trusted again afterwards.
func TestResetWithWhatCannotBeSeen(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(20, 3)
		p := started(t, w, tab)
		p.bigMap = 10
		fam := nftFamily(w.Family)
		id := p.st.sets[lb.SetID{Service: "ns/svc-2:http", Proto: lb.TCP, Scope: lb.Cluster}].id
		runNFT(t, fmt.Sprintf(`add element %s kube-proxy backends { %d . 3 : %s . 99 }`, fam, id, w.Addr(9, 9)))
		noticed(t, p)
		tab.Replace(w.ClusterIP(2, 200, 4))
		for try := range 2 {
			if _, err := p.Reset(t.Context(), tab); !errors.Is(err, plane.ErrStateLost) {
				t.Fatalf("reset %d: error %v, want %v", try, err, plane.ErrStateLost)
			}
		}
		reset(t, p, tab)
		isFresh(t, p, tab)
		sent := p.Stats().Batches
		reset(t, p, tab)
		if p.Stats().Batches != sent {
			t.Error("the next Reset writes again")
		}
	})
}

// busyNeighbour changes another table without pause until the test ends.
func busyNeighbour(t *testing.T) {
	t.Helper()
	runNFT(t, "add table ip neighbour; add set ip neighbour s { type mark; }")
	s, err := wire.Open()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); wg.Wait(); s.Close() })
	wg.Go(func() {
		for i := uint32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tr := wire.NewTransaction(unix.NFPROTO_IPV4, "neighbour",
				[]wire.Set{{Name: "s", Key: wire.Fields{wire.MarkField}}})
			tr.Add(0, wire.AppendNumber(nil, i))
			if _, err := s.Commit(context.Background(), &selfwrites.Ledger{}, tr); err != nil {
				t.Error(err)
				return
			}
		}
	})
}

// Other programs may change their own tables as often as they like; we can still read ours.
func TestBusyNeighbour(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(2000, 4)
	p := started(t, w, tab)
	want := fresh(t, w.Family, tab)
	busyNeighbour(t)
	q := newPlane(t, w.Family)
	if _, err := q.Reset(t.Context(), tab); err != nil {
		t.Errorf("Reset: %v", err)
	}
	if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
		t.Errorf("a full audit repaired %d, error %v", n, err)
	}
	runNFT(t, "flush chain ip kube-proxy cluster; flush map ip kube-proxy services")
	// The notifications arrive in several messages, the rules first.
	for repaired := 0; repaired < 2000; {
		noticed(t, p)
		n, err := p.Audit(t.Context(), false)
		if err != nil {
			t.Fatalf("audit after %d repairs: %v", repaired, err)
		}
		repaired += n
	}
	if got := dump(t, p); got != want {
		t.Error("the dump differs from a fresh one")
	}
}
