package engine

import (
	"testing"
	"time"

	"kube-proxy/lb"
)

func TestDelays(t *testing.T) {
	var got []time.Duration
	for d := nextDelay(0); len(got) < 11; d = nextDelay(d) {
		got = append(got, d)
	}
	for i, d := range got {
		want := min(50*time.Millisecond<<i, 30*time.Second)
		if d != want {
			t.Errorf("delay %d is %v, want %v", i, d, want)
		}
	}
}

func TestWaitlist(t *testing.T) {
	t0 := time.Unix(1000, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	var w waitlist[string]
	if _, ok := w.next(); ok {
		t.Error("the zero waitlist has something due")
	}
	w.fail("a", at(0))
	w.fail("b", at(10))
	w.fail("c", at(20))
	w.forget("b")
	w.forget("never")
	if n, _ := w.next(); !n.Equal(at(50)) {
		t.Errorf("next is %v", n.Sub(t0))
	}
	if k := w.due(at(49)); len(k) != 0 {
		t.Errorf("due too early: %v", k)
	}
	if k := w.due(at(70)); len(k) != 2 || k[0] != "a" || k[1] != "c" {
		t.Errorf("due: %v", k)
	}
	w.fail("a", at(70)) // the second time: 100 ms
	if n, _ := w.next(); !n.Equal(at(170)) {
		t.Errorf("after the second failure next is %v", n.Sub(t0))
	}
	w.again("a", at(70))
	if n, _ := w.next(); !n.Equal(at(120)) {
		t.Errorf("after a failure in company next is %v", n.Sub(t0))
	}
	w.forget("a")
	w.fail("a", at(0)) // forgotten: 50 ms again
	if n, _ := w.next(); !n.Equal(at(50)) {
		t.Errorf("after forget next is %v", n.Sub(t0))
	}
}

// The credit allows 100 failures at once and then 5 a second.
func TestCredit(t *testing.T) {
	now := time.Unix(1000, 0)
	var c credit
	for i := range maxCredit {
		if c.until().After(now) {
			t.Fatalf("no credit after %d failures", i)
		}
		c.spend(now)
	}
	if d := c.until().Sub(now); d != creditPeriod {
		t.Errorf("after %d failures the next write waits %v, want %v", maxCredit, d, creditPeriod)
	}
	now = now.Add(time.Hour)
	if c.until().After(now) {
		t.Error("credit does not come back")
	}
	c.spend(now)
	if c.until().After(now) {
		t.Error("one failure after an hour takes all credit")
	}
}

// A key that was never accepted, and is removed and added again before a write, is no change.
func TestPendingFolds(t *testing.T) {
	k := svcKey(1)
	f := &lb.Frontend{Key: k, Service: "shop/s1", Kind: lb.ClusterIP,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Reject}}}
	var table lb.Table
	p := newPending()
	offered := func() []lb.Change {
		changes, _ := p.offer(p.take(1000, new(lb.Weight).Of, &table), &table)
		return changes
	}
	fold := func(fronts ...*lb.Frontend) {
		changes, _ := table.Replace(lb.Owner{Name: "shop/s1"}, fronts)
		for _, c := range changes {
			p.add(c)
		}
	}
	fold(f)
	fold()
	if c := offered(); len(c) != 0 || len(p.byKey) != 0 {
		t.Errorf("added and removed: %v", c)
	}
	fold(f)
	c := offered()
	if len(c) != 1 || c[0].Old != nil || c[0].New != f {
		t.Fatalf("added: %v", c)
	}
	p.failed(c)
	fold()
	c = offered()
	if len(c) != 1 || c[0].New != nil || p.doubtful != 1 {
		t.Errorf("in doubt and removed: %v", c)
	}
}
