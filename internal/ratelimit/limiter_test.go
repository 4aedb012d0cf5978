package ratelimit

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/test/logtest"
)

// TN-02: each namespace has its own share, which time gives back, and each suppressed message is
// counted in a line.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		l := New(slog.New(slog.NewTextHandler(&log, nil)), "Malformed object")
		allowed := func(namespace string, n int) (allowed int) {
			for range n {
				if l.Allow(namespace) {
					allowed++
				}
			}
			return allowed
		}
		for i, step := range []struct {
			after     time.Duration
			namespace string
			n, want   int
		}{
			{0, "tenant", 100_000, Burst},
			{0, "stranger", 3, 3},
			{0, "", Burst + 1, Burst},
			{Gap, "tenant", 100, 1},
			{Burst * Gap, "tenant", 100, Burst},
			{0, "stranger", 100, Burst},
		} {
			time.Sleep(step.after)
			if got := allowed(step.namespace, step.n); got != step.want {
				t.Errorf("step %d: allowed %d of %d, want %d", i, got, step.n, step.want)
			}
		}
		time.Sleep(ReportGap)
		synctest.Wait()
		lines := log.Lines("Suppressed messages")
		counts := []int{100_000 - Burst + 1 + 99, 100 - Burst + 100 - Burst}
		if len(lines) != len(counts) {
			t.Fatalf("%d lines about suppressed messages, want %d:\n%s", len(lines), len(counts), &log)
		}
		for i, n := range counts {
			if !strings.Contains(lines[i], fmt.Sprintf(`kind="Malformed object" messages=%d mostAbout=`, n)) {
				t.Errorf("line %d should count %d messages: %s", i, n, lines[i])
			}
		}
		if !strings.Contains(lines[0], "mostAbout=tenant ofThem=100079") {
			t.Errorf("the line does not name the namespace: %s", lines[0])
		}
	})
}

// TN-02: memory and all messages together are bounded, however many namespaces there are, and old
// shares make room.
func TestManyNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Buffer
		l := New(slog.New(slog.NewTextHandler(&log, nil)), "")
		allowed := 0
		flood := func(from int) {
			for i := range 100 * MaxShares {
				if l.Allow(fmt.Sprint("tenant-", from+i)) {
					allowed++
				}
			}
		}
		flood(0)
		flood(0)
		if len(l.shares) != MaxShares || allowed > 2*MaxShares+Burst {
			t.Errorf("%d shares, and %d messages", len(l.shares), allowed)
		}
		time.Sleep(Burst * Gap)
		if !l.Allow("stranger") || l.shares["stranger"] == nil {
			t.Error("a stranger has no share of his own though the others are whole")
		}
		time.Sleep(ReportGap)
		synctest.Wait()
		want := fmt.Sprintf(`messages=%d mostAbout="other namespaces" ofThem=%[1]d`, 2*100*MaxShares-allowed)
		if lines := log.Lines("Suppressed messages"); len(lines) != 1 || !strings.Contains(lines[0], want) {
			t.Errorf("%q, want one line with %s", lines, want)
		}
	})
}

// A Limiter may be asked while it logs, also by the log itself.
func TestLogsWithoutItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Limiter
		reports := 0
		l = New(slog.New(slog.NewTextHandler(writer(func() { reports++; l.Allow("tenant") }), nil)), "")
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for range 1000 {
					l.Allow("tenant")
				}
			})
		}
		work.Wait()
		time.Sleep(ReportGap)
		synctest.Wait()
		if reports != 1 {
			t.Errorf("%d lines, want 1", reports)
		}
	})
}

// writer calls itself for each write.
type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}
