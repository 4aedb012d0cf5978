//go:build linux

package iptables

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/test/seedtest"
)

// staged applies changes until none is left for later, and returns how many calls that took. It fails where a call hands over more
// than most bytes.
func staged(t *testing.T, p *Plane, changes []lb.Change, most uint64) (calls int) {
	t.Helper()
	for ; len(changes) > 0; calls++ {
		before := p.Stats().Bytes
		res, err := p.Apply(t.Context(), changes)
		if err != nil {
			t.Fatal(err)
		}
		if sent := p.Stats().Bytes - before; sent > most {
			t.Errorf("call %d handed over %d bytes, want %d at most", calls, sent, most)
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

// fresh is what a plane holds that starts with the table, beside what is there.
func fresh(t *testing.T, cfg Config, tab *lb.Table) string {
	t.Helper()
	p := newPlane(t, cfg)
	reset(t, p, tab)
	defer p.Close()
	return dump(t, p)
}

// A Service of more endpoints than one restore should have comes, changes and goes in calls of bounded size, whatever it was and is to
// be; a fresh plane would hold the same (TN-72).
func TestLargeServicesInStages(t *testing.T) {
	for _, cfg := range []Config{{Family: lb.IPv4, Backend: NFT}, {Family: lb.IPv6, Backend: Legacy}} {
		t.Run(fmt.Sprintf("%s/%s", cfg.Backend, cfg.Family), func(t *testing.T) {
			needs(t, cfg.Backend)
			inNetns(t)
			w, p := planetest.World{Family: cfg.Family}, newPlane(t, cfg)
			p.single, p.pace = false, 300
			tab := w.Table(3, 2)
			reset(t, p, tab)
			const line = 200
			for _, step := range []struct {
				what     string
				first, n int
				affinity time.Duration
				calls    int
			}{
				{"comes", 100, 1500, 0, 5},
				{"one more", 100, 1501, 0, 1},
				{"all others", 5000, 1100, 0, 6},
				{"with affinity", 5000, 1100, time.Hour, 4},
				{"few are left", 5000, 3, 0, 2},
				{"many again", 5000, 1030, 0, 4},
				{"goes", 0, 0, 0, 2},
				{"comes again", 100, 1100, time.Hour, 5},
			} {
				o, fronts := w.Full(9, step.first, step.n, 0, step.affinity)
				if step.n == 0 {
					fronts = nil
				}
				changes, _ := tab.Replace(o, fronts)
				calls := staged(t, p, changes, line*uint64(p.stageLines()+4*partSize))
				if calls < step.calls || calls > step.calls+1 {
					t.Errorf("%s: %d calls, want about %d", step.what, calls, step.calls)
				}
			}
			if n, err := auditAll(p); n != 0 || err != nil {
				t.Errorf("the audit mended %d, %v", n, err)
			}
			if got, want := dump(t, p), fresh(t, cfg, tab); got != want {
				t.Fatalf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// In the middle of anything others are written as ever, an audit finds nothing, a refused restore is tried again, and after a crash the
// next process holds what a fresh one would (TN-72).
func TestStagesAreInterrupted(t *testing.T) {
	needs(t, NFT)
	inNetns(t)
	rnd := rand.New(rand.NewPCG(seedtest.Of(t), 3))
	w, cfg := planetest.World{Family: lb.IPv4}, Config{Family: lb.IPv4, Backend: NFT}
	start := func(tab *lb.Table) *Plane {
		p := newPlane(t, cfg)
		p.pace = 20
		reset(t, p, tab)
		return p
	}
	tab := w.Table(3, 2)
	p := start(tab)
	pending := map[lb.Key]lb.Change{}
	for step := range 80 {
		did := ""
		switch i := 5 + rnd.IntN(3); rnd.IntN(8) {
		case 0:
			did = "crash"
			p.Close()
			p = start(tab)
			clear(pending)
		case 1:
			did = "refused"
			for _, c := range pending {
				p.tool.run = &refuser{refuses: func([]byte, []string) error {
					return &runError{name: "iptables-restore", said: "line 1: RULE_APPEND failed", err: errors.New("exit status 4")}
				}}
				p.Apply(t.Context(), []lb.Change{c})
				p.tool.run = system{}
				break
			}
		case 2, 3:
			n := rnd.IntN(200)
			did = fmt.Sprintf("Service %d has %d backends", i, n)
			o, fronts := w.Full(i, 100+rnd.IntN(60), n, rnd.IntN(max(1, n)), time.Duration(rnd.IntN(2))*time.Hour)
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
		if n, err := auditAll(p); (n != 0 && did != "refused") || err != nil {
			t.Fatalf("step %d, %s: the audit mended %d, %v", step, did, n, err)
		}
		if len(pending) == 0 && rnd.IntN(3) == 0 {
			if got, want := dump(t, p), fresh(t, cfg, tab); got != want {
				t.Fatalf("step %d, %s: got:\n%s\nwant:\n%s", step, did, got, want)
			}
		}
	}
	var rest []lb.Change
	for k, c := range pending {
		c.New = tab.Get(k)
		rest = append(rest, c)
	}
	if err := planetest.ApplyAll(t.Context(), p, rest); err != nil {
		t.Fatal(err)
	}
	if got, want := dump(t, p), fresh(t, cfg, tab); got != want {
		t.Fatalf("at the end: got:\n%s\nwant:\n%s", got, want)
	}
}
