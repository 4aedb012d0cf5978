package ipvs

import (
	"errors"
	"testing"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// real returns a plane with the kernel's ipsets, addresses and rules, in the network namespace of
// the calling thread; only IPVS is in memory.
func (k *lab) real(t *testing.T, f lb.Family) *Plane {
	t.Helper()
	cfg, opened := k.config(f), closers{}
	_, err := cfg.open(xtables.Auto, &opened)
	must(t, err)
	p := New(cfg)
	t.Cleanup(func() { must(t, errors.Join(p.Close(), opened.Close())) })
	return p
}

// The plane on the kernel's ipsets, addresses and rules: all moves, with restarts between them. It
// takes none of its own changes for foreign ones (DP-31 to DP-33).
func TestRealSetsAndRules(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			enterForDevice(t)
			k, w := newLab(t), planetest.World{Family: f}
			p, table := k.real(t, f), startTable(w)
			must(t, only(planetest.ResetAll(t.Context(), p, table)))
			for _, m := range moves() {
				changes := m.make(table, w)
				if _, err := p.Apply(t.Context(), changes); err != nil {
					t.Fatalf("%s: %v", m.name, err)
				}
				if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
					t.Fatalf("%s: an audit repaired %d, %v", m.name, n, err)
				}
				was, err := p.Dump()
				must(t, err)
				p = k.real(t, f)
				if res, err := planetest.ResetAll(t.Context(), p, table); err != nil || len(res.Dropped)+
					len(res.Later) > 0 {
					t.Fatalf("%s: restart: %v %v", m.name, res, err)
				}
				is, err := p.Dump()
				must(t, err)
				if is != was {
					t.Fatalf("%s: a restart makes of\n%s\nthis\n%s", m.name, was, is)
				}
			}
		})
	}
}
