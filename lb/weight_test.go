package lb

import (
	"net/netip"
	"testing"
)

func TestWeight(t *testing.T) {
	set := &BackendSet{Backends: BackendsOf(make([]Backend, 5)...)}
	other := &BackendSet{Backends: BackendsOf(make([]Backend, 2)...)}
	ranges := make([]netip.Prefix, 4)
	var w Weight
	for i, c := range []struct {
		f    *Frontend
		want int
	}{
		{nil, 1},
		{&Frontend{Routes: []Route{{To: set}, {To: set}}}, 6},
		{&Frontend{Routes: []Route{{To: set}, {To: other}}, Sources: make([]netip.Prefix, 3)}, 6},
		{&Frontend{Routes: []Route{{Do: Reject}}}, 1},
		{&Frontend{Sources: ranges}, 5},
		{&Frontend{Sources: ranges}, 1},
	} {
		if got := w.Of(c.f); got != c.want {
			t.Errorf("row %d weighs %d, want %d", i, got, c.want)
		}
	}
}
