//go:build linux

package nftables

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/test/seedtest"
)

// staged applies changes until none is left for later, and returns how many calls that took. It fails where a call writes more than
// most messages' worth of elements, as the bytes that it sends show.
func staged(t *testing.T, p *Plane, changes []lb.Change, most uint64) (calls int) {
	t.Helper()
	for ; len(changes) > 0; calls++ {
		before := p.Stats().Bytes
		res, err := p.Apply(t.Context(), changes)
		if err != nil {
			t.Fatal(err)
		}
		if sent := p.Stats().Bytes - before; sent > most {
			t.Errorf("call %d sent %d bytes, want %d at most", calls, sent, most)
		}
		if calls > 500 {
			t.Fatal("no end of calls")
		}
		var rest []lb.Change
		for _, c := range changes {
			for _, k := range res.Later {
				if c.Key == k {
					rest = append(rest, c)
				}
			}
		}
		changes = rest
	}
	return calls
}

// A set of more backends than Pace comes, changes and goes in calls of bounded size, whatever it was and is to be; a fresh plane would
// hold the same (TN-30).
func TestLargeSetsInStages(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		p := newPlane(t, w.Family)
		p.pace = 100
		tab := w.Table(3, 2)
		reset(t, p, tab)
		for _, step := range []struct {
			what     string
			first, n int
			affinity time.Duration
			calls    int
		}{
			{"comes", 100, 1000, 0, 10},
			{"one more", 100, 1001, 0, 1},
			{"all others", 2000, 1000, 0, 11},
			{"few are left", 2000, 3, 0, 10},
			{"many again", 2000, 700, 0, 7},
			{"with affinity", 2000, 700, time.Hour, 7},
			{"without affinity", 2000, 700, 0, 7},
			{"goes", 0, 0, 0, 7},
		} {
			o, fronts := w.Full(9, step.first, step.n, 0, step.affinity)
			changes, _ := tab.Replace(o, fronts)
			// 100 slots that are written anew, and with affinity the members of all.
			most := uint64(100*300 + 20_000)
			if step.affinity > 0 || step.what == "without affinity" {
				most += uint64(step.n * 400)
			}
			if calls := staged(t, p, changes, most); calls < step.calls || calls > 2*step.calls {
				t.Errorf("%s: %d calls, want about %d", step.what, calls, step.calls)
			}
			if n, err := p.Audit(t.Context(), true); n != 0 || err != nil {
				t.Errorf("%s: the audit mended %d, %v", step.what, n, err)
			}
			if got, want := dump(t, p), fresh(t, w.Family, tab); got != want {
				t.Fatalf("%s: got:\n%s\nwant:\n%s", step.what, got, want)
			}
		}
	})
}

// In the middle of anything others are written as ever, an audit finds nothing, a refused batch changes nothing, and after a crash the
// next process holds what a fresh one would (TN-30).
func TestStagesAreInterrupted(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	inNetns(t)
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 3))
	p := newPlane(t, w.Family)
	p.pace = 20
	tab := w.Table(3, 2)
	reset(t, p, tab)
	pending := map[lb.Key]lb.Change{}
	for step := range 200 {
		did := ""
		switch i := 5 + rnd.IntN(3); rnd.IntN(8) {
		case 0:
			did = "crash"
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			p, _ = New(Config{Family: w.Family})
			p.pace = 20
			reset(t, p, tab)
			clear(pending)
		case 1:
			did = "refused"
			c := p.newChange(p.st)
			var all []lb.Change
			for _, ch := range pending {
				all = append(all, ch)
			}
			if err := c.stage(all); err != nil {
				t.Fatal(err)
			}
			c.log.Undo()
		case 2, 3:
			n := rnd.IntN(90)
			did = fmt.Sprintf("Service %d has %d backends", i, n)
			o, fronts := w.Full(i, 100+rnd.IntN(60), n, 0, time.Duration(rnd.IntN(2))*time.Hour)
			if n == 0 {
				fronts = nil
			}
			changes, _ := tab.Replace(o, fronts)
			for _, c := range changes {
				pending[c.Key] = c
			}
		default:
			did = "go on"
			for k, c := range pending {
				c.New = tab.Get(k)
				res, err := p.Apply(t.Context(), []lb.Change{c})
				if err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
				if len(res.Later) == 0 {
					delete(pending, k)
				}
				break
			}
		}
		if n, err := p.Audit(t.Context(), true); n != 0 || err != nil {
			t.Fatalf("step %d, %s: the audit mended %d, %v", step, did, n, err)
		}
		if len(pending) == 0 && rnd.IntN(3) == 0 {
			if got, want := dump(t, p), fresh(t, w.Family, tab); got != want {
				t.Fatalf("step %d, %s: got:\n%s\nwant:\n%s", step, did, got, want)
			}
		}
	}
	for _, c := range pending {
		c.New = tab.Get(c.Key)
		if err := planetest.ApplyAll(t.Context(), p, []lb.Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := dump(t, p), fresh(t, w.Family, tab); got != want {
		t.Fatalf("at the end: got:\n%s\nwant:\n%s", got, want)
	}
	p.Close()
}
