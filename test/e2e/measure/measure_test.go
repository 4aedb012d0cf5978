package measure

import (
	"testing"
	"time"

	"kube-proxy/test/e2e/testbed"
)

// All that the benchmarks measure has plausible values in a small cluster.
func TestSession(t *testing.T) {
	t.Run("API server", func(t *testing.T) { testSession(t, Config{Mode: testbed.IPTables}) })
	t.Run("stand-in", func(t *testing.T) { testSession(t, Config{StandIn: true}) })
	t.Run("ebpf", func(t *testing.T) { testSession(t, Config{StandIn: true, Mode: testbed.EBPF}) })
}

func testSession(t *testing.T, config Config) {
	config.Services, config.Endpoints, config.Logf = 100, 2, t.Logf
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(t.Context(), config)
	must(err)
	t.Cleanup(func() { must(s.Close()) })
	start, err := s.Start(t.Context())
	must(err)
	change, err := s.Change(t.Context())
	must(err)
	created, err := s.Create(t.Context())
	must(err)
	for _, c := range []Timing{change, created} {
		if c.Write <= 0 || c.Took < c.Write {
			t.Errorf("%v", c)
		}
	}
	u, err := s.ConnectTimes(t.Context(), 10)
	must(err)
	if u.first <= 0 || u.last < u.first || u.last > time.Second {
		t.Errorf("connections were set up in %v to %v", u.first, u.last)
	}
	cpu, err := s.proxy.CPUTime()
	must(err)
	memory, err := s.proxy.PeakMemory()
	must(err)
	if start <= 0 || cpu <= 0 || memory < 1<<20 {
		t.Errorf("start %v, CPU %v, memory %d", start, cpu, memory)
	}
	must(s.Clean(t.Context()))
}

func TestRefusesNothing(t *testing.T) {
	if _, err := Open(t.Context(), Config{Endpoints: 1}); err == nil {
		t.Error("0 services were measured")
	}
}
