//go:build linux

package nftables

import (
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// A notice reports once that session affinity is nearly full, and again only after usage fell far
// below that. The metrics show the usage.
func TestAffinityNearlyFull(t *testing.T) {
	p, err := offline(Config{Family: lb.IPv6})
	if err != nil {
		t.Fatal(err)
	}
	measured := func() map[string]float64 {
		all := map[string]float64{}
		if err := p.Measure(func(metric string, value float64, _ ...string) { all[metric] = value }); err != nil {
			t.Error(err)
		}
		return all
	}
	var reported, logged []string
	for _, entries := range []int{0, 79, 80, 100, 60, 99, 59, 79, 81} {
		p.use.Store(&affinityUse{entries: entries, limit: 100, busiest: []string{"shop/web:http"}})
		for _, n := range p.Notices() {
			e := n.Event("n1")
			reported, logged = append(reported, e.Reason+": "+e.Note), append(logged, n.Text)
		}
		if got := measured(); got[entriesMetric] != float64(entries) || got[limitMetric] != 100 {
			t.Errorf("of %d entries the metrics say %v", entries, got)
		}
	}
	p.use.Store(nil) // unknown
	if got := measured(); len(got) != 1 {
		t.Errorf("where it is not known the metrics say %v", got)
	}
	if len(reported) != 2 || !strings.Contains(reported[0], "IPv6 on node n1 is 80 % full; Services with the most "+
		"clients: shop/web:http") || !strings.Contains(reported[1], "is 81 % full") {
		t.Errorf("reported %q", reported)
	}
	if len(logged) != 2 || !strings.Contains(logged[0], "nearly full") {
		t.Errorf("logged %q", logged)
	}
}

// A notice reports once that the kernel cannot hash clients, and the mode lists each metric that
// its planes report.
func TestNotices(t *testing.T) {
	p, err := offline(Config{Family: lb.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	p.rules.hashes = false
	if n := p.Notices(); len(n) != 1 || !strings.Contains(n[0].Text, "CONFIG_NFT_HASH") || n[0].Event != nil {
		t.Errorf("reported %+v", n)
	}
	if n := p.Notices(); len(n) != 0 {
		t.Errorf("reported again: %+v", n)
	}
	p.use.Store(&affinityUse{limit: 1})
	names := map[string]bool{}
	for _, m := range Mode().Metrics {
		names[m.Name] = m.Help != ""
	}
	var emit mode.Emit = func(metric string, _ float64, _ ...string) {
		if !names[metric] {
			t.Errorf("the mode has no metric %s", metric)
		}
	}
	if err := p.Measure(emit); err != nil {
		t.Error(err)
	}
}
