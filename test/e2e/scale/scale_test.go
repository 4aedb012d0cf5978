package scale

import (
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kube-proxy/test/e2e/testbed"
)

// SV-68: five hollow nodes of each kind watch one API server, which is killed and restarted: ours
// send and connect no more often than client-go's informers do. `make scale` does the same with
// more nodes and failures.
func TestRestartStorm(t *testing.T) {
	bed := newBed(t)
	h, err := New(t.Context(), bed, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	const nodes = 5
	var both []*Population
	for _, c := range Clients {
		p, err := h.Population(t.Context(), c, nodes)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, p)
	}
	for _, p := range both {
		cost, err := h.Costs(t.Context(), p, 50, 10*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v", p.Name, cost)
		if cost.Connections != nodes || cost.ChangeBytes < 100 || cost.ListBytes < 10_000 {
			t.Errorf("%s: %v; want a connection for each node, and bytes", p.Name, cost)
		}
		p.Start(t.Context())
	}
	gusts, err := h.Run(t.Context(), Storms[0], 3*time.Second, 10*time.Second, both)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range both {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	if a, b := gusts[0], gusts[1]; a.Requests() > b.Requests() || a.Dials > b.Dials {
		t.Errorf("ours hit the API server harder than informers do:\n%v\n%v", a, b)
	}
}

func TestFit(t *testing.T) {
	line, err := Fit([]float64{0, 10, 20, 30}, []float64{5, 25, 45, 65})
	if err != nil {
		t.Fatal(err)
	}
	if y, e := line.At(100); math.Abs(y-205) > 1e-9 || e > 1e-9 {
		t.Errorf("y = 5 + 2x at 100: %g ± %g", y, e)
	}
	// By hand: slope 0.9, residuals ±0.1, ∓0.3, …; s² = 0.7/3, and at 6 half a width of 3.18 · s ·
	// √(1 + 1/5 + 9/10).
	line, err = Fit([]float64{1, 2, 3, 4, 5}, []float64{1, 2, 2, 4, 4.5})
	if err != nil {
		t.Fatal(err)
	}
	want := 3.18 * math.Sqrt(0.7/3) * math.Sqrt(1+0.2+0.9)
	if y, e := line.At(6); math.Abs(line.B-0.9) > 1e-9 || math.Abs(y-5.4) > 1e-9 || math.Abs(e-want) > 1e-9 {
		t.Errorf("slope %g, at 6: %g ± %g, want 0.9, 5.4 ± %g", line.B, y, e, want)
	}
	for _, x := range [][]float64{{1, 2}, {3, 3, 3}} {
		if _, err := Fit(x, x); err == nil {
			t.Errorf("a line through %v", x)
		}
	}
}

// The pods of a deployment are replaced under traffic from three nodes with real proxies: each
// node's kernel follows each pod, and no connection is lost.
func TestRollout(t *testing.T) {
	bed := newBed(t)
	rollout := Rollout{Endpoints: 200, Over: 4 * time.Second, Grace: 2 * time.Second, Rest: 5 * time.Millisecond}
	r, err := Roll(t.Context(), bed, rollout)
	if err != nil {
		t.Fatal(err)
	}
	if r.Connections < 100 || len(r.First) != 3*200 || len(r.Last) != 3*200 {
		t.Errorf("%d connections, %d pods came and %d went on three nodes", r.Connections, len(r.First), len(r.Last))
	}
	for _, err := range r.Lost {
		t.Errorf("a connection is lost: %v", err)
	}
	t.Logf("%d connections; a pod is in the kernel after %v (p99 %v), out of it after %v (p99 %v), used until %v "+
		"after its end",
		r.Connections, Of(r.First, 50), Of(r.First, 99), Of(r.Last, 50), Of(r.Last, 99), r.Late)
}

// What nft's monitor prints for our changes and for upstream's, where one rule has all pods of a
// Service, in the names of their chains, and unused chains are deleted later.
func TestView(t *testing.T) {
	const chain = "endpoint-AB-default/web/tcp/p__"
	lines := []string{
		"add rule ip kube-proxy " + chain + "100.64.0.1/8080 ip saddr 100.64.0.1 jump mark-for-masquerade",
		"add rule ip kube-proxy service-X-default/web/tcp/p numgen random mod 5001 vmap { 0 : goto " + chain +
			"100.64.0.2/8080" + strings.Repeat(", 9 : goto "+chain+"100.64.0.1/8080", 5000) + " }",
		"add rule ip kube-proxy service-X-default/web/tcp/p ip daddr 10.96.0.9 jump mark-for-masquerade",
		"delete rule ip kube-proxy service-X-default/web/tcp/p handle 7",
		"add rule ip kube-proxy service-X-default/web/tcp/p numgen random mod 1 vmap { 0 : goto " + chain +
			"100.64.0.2/8080 }",
		"delete chain ip kube-proxy " + chain + "100.64.0.1/8080",
		"add element ip kube-proxy backends { 0x00000007 . 1 : 100.64.0.3 . 8080 }",
		"delete element ip kube-proxy backends { 0x00000007 . 1 : 100.64.0.3 . 8080 }",
	}
	v := newView("node")
	for i, line := range lines {
		v.take(line, time.Unix(int64(i+1), 0))
	}
	for _, want := range []struct {
		pod         string
		first, last int64 // lines, from 1
	}{{"100.64.0.1", 1, 5}, {"100.64.0.2", 2, 0}, {"100.64.0.3", 7, 8}} {
		pod := netip.MustParseAddr(want.pod)
		if first := v.first[pod]; first != time.Unix(want.first, 0) {
			t.Errorf("%s was added by line %d, want %d", pod, first.Unix(), want.first)
		}
		if last, gone := v.last[pod]; gone != (want.last > 0) || gone && last != time.Unix(want.last, 0) {
			t.Errorf("%s was removed by line %d (%v), want %d", pod, last.Unix(), gone, want.last)
		}
	}
}

func newBed(t *testing.T) *testbed.Bed {
	bed, err := testbed.New(t.Context(), testbed.Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	return bed
}
