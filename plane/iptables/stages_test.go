//go:build linux

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// fresh returns the content of a plane that starts with the table, on top of the existing rules.
func fresh(t *testing.T, cfg Config, tab *lb.Table) string {
	t.Helper()
	p := newPlane(t, cfg)
	reset(t, p, tab)
	defer p.Close()
	return dump(t, p)
}

// A Service with more endpoints than fit in one restore is added, changed and removed in calls of
// bounded size, from any state to any other. A fresh plane would hold the same (TN-72).
func TestLargeServicesInStages(t *testing.T) {
	for _, cfg := range []Config{{Family: lb.IPv4, Backend: xtables.NFT}, {Family: lb.IPv6, Backend: xtables.Legacy}} {
		t.Run(fmt.Sprintf("%s/%s", cfg.Backend, cfg.Family), func(t *testing.T) {
			needs(t, cfg.Backend)
			inNetns(t)
			w, p := planetest.World{Family: cfg.Family}, newPlane(t, cfg)
			p.single, p.pace = false, fixed(300)
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
				calls := planetest.Staged(t, p, changes, func() uint64 { return p.Stats().Bytes },
					line*uint64(p.stageLines()+4*partSize))
				if calls < step.calls || calls > step.calls+1 {
					t.Errorf("%s: %d calls, want about %d", step.what, calls, step.calls)
				}
			}
			repairs(t, p, 0, "at the end")
			if got, want := dump(t, p), fresh(t, cfg, tab); got != want {
				t.Fatalf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// iptables refuses input or exits in the middle, and other programs change chains. Meanwhile other
// frontends are written as usual, and an audit repairs only foreign changes. The next process holds
// the same as a fresh one, with Services of many stages too (TN-72). The kernel treats packets as
// the table says.
func TestWalk(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		t.Parallel()
		planetest.Walks(t, 3, 40, func(t testing.TB) planetest.Kernel {
			k, run := backend(b).kernel(t), &refuser{System: xtables.System{Lock: ownLock()}}
			k.New = func(f lb.Family) (planetest.Plane, error) {
				return New(Config{Family: f, Backend: b, Runner: run})
			}
			k.Slow = func(f lb.Family) (planetest.Plane, error) {
				return slow(Config{Family: f, Backend: b, Runner: run})
			}
			k.Faults = planetest.Faults{
				Begin: func(rnd *rand.Rand) { run.refuses = run.atRandom(t.Context(), rnd) },
				End:   func() { run.refuses = nil },
				Check: func(t testing.TB, p planetest.Plane, table *lb.Table) {
					packets := planetest.World{Family: table.Family}.Packets(table, false)
					compare(t, p.(*Plane), table, packets[:min(10, len(packets))])
				},
			}
			return k
		})
	})
}

// atRandom refuses some restores, or makes them end after some of their tables.
func (r *refuser) atRandom(ctx context.Context, rnd *rand.Rand) func([]byte, []string) error {
	refused := &xtables.RunError{Name: "iptables-restore", Said: "line 1: RULE_APPEND failed",
		Err: errors.New("exit status 4")}
	ended := &xtables.RunError{Name: "iptables-restore", Said: "line 1000000: COMMIT expected",
		Err: errors.New("exit status 2")}
	return func(text []byte, _ []string) error {
		switch rnd.IntN(6) {
		case 0:
			return refused
		case 1:
			first, rest, _ := bytes.Cut(text, []byte("COMMIT\n"))
			if len(rest) == 0 {
				return refused
			}
			in := func(w io.Writer) error {
				_, err := w.Write(append(first, "COMMIT\n"...))
				return err
			}
			if err := r.System.Pipe(ctx, in, nil, r.program, "--noflush"); err != nil {
				return err
			}
			return ended
		}
		return nil
	}
}
