package planetest

import (
	"maps"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Counted returns the connections that a plane counts, by service port. No counter may be repeated,
// or empty.
func Counted(t testing.TB, p mode.TrafficCounter) map[string]uint64 {
	t.Helper()
	got, numbers := map[string]uint64{}, map[uint64]bool{}
	if err := p.Traffic(t.Context(), func(c mode.Count) {
		if c.Frontend != (lb.Key{}) || c.N == 0 || c.Traffic == (mode.Traffic{}) || numbers[c.N] {
			t.Errorf("%+v", c)
		}
		numbers[c.N] = true
		got[c.ServicePort] += c.Connections
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

// WantCounted expects these connections, by service port, and no others.
func WantCounted(t testing.TB, p mode.TrafficCounter, about string, want map[string]uint64) {
	t.Helper()
	if got := Counted(t, p); !maps.Equal(got, want) {
		t.Errorf("%s: %v, want %v", about, got, want)
	}
}
