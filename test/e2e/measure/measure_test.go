package measure

import (
	"testing"
	"time"

	"kube-proxy/test/e2e/testbed"
)

// A small measurement fills every field with something that can be true.
func TestRun(t *testing.T) {
	t.Run("API server", func(t *testing.T) {
		testRun(t, Config{Mode: testbed.IPTables, Services: 100, Endpoints: 2, Changes: 10, Logf: t.Logf})
	})
	t.Run("stand-in", func(t *testing.T) {
		testRun(t, Config{Services: 100, Endpoints: 2, Changes: 10, Logf: t.Logf, StandIn: true})
	})
}

func testRun(t *testing.T, config Config) {
	r, err := Run(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]Times{"write": r.Write, "change": r.Change, "new": r.New} {
		if d.P50 <= 0 || d.P99 < d.P50 || d.Max < d.P99 {
			t.Errorf("%s: p50 %v, p99 %v, longest %v", name, d.P50, d.P99, d.Max)
		}
	}
	if r.Change.P50 < r.Write.P50 {
		t.Errorf("a change takes %v, of which the API server %v", r.Change.P50, r.Write.P50)
	}
	if r.FirstConnect <= 0 || r.LastConnect < r.FirstConnect || r.LastConnect > time.Second {
		t.Errorf("connections were set up in %v to %v", r.FirstConnect, r.LastConnect)
	}
	if r.Start <= 0 || r.Restart <= 0 || r.CPUPerChange < 0 || r.PeakMemory < 1<<20 {
		t.Errorf("implausible: %+v", *r)
	}
}

func TestRefusesNothing(t *testing.T) {
	if _, err := Run(t.Context(), Config{Endpoints: 1, Changes: 1}); err == nil {
		t.Error("0 services were measured")
	}
}
