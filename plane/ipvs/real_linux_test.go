package ipvs

import (
	"testing"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// realLab is a lab with the kernel's ipsets, addresses and rules, in the network namespace of the
// calling thread; only IPVS is in memory.
func realLab(t *testing.T, f lb.Family) (*lab, func() *Plane) {
	t.Helper()
	enterForDevice(t)
	k := newLab(t)
	return k, func() *Plane {
		t.Helper()
		conn, err := ipset.Open()
		if err != nil {
			t.Fatal(err)
		}
		dev, err := openDevice(f)
		if err != nil {
			t.Fatal(err)
		}
		chains, err := newChains(nodeFacts{family: f, masq: 1 << 14}, xtables.Auto, nil)
		if err != nil {
			t.Fatal(err)
		}
		cfg := k.config(f)
		cfg.Sets, cfg.Device, cfg.Chains = conn, dev, chains
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			p.Close()
			chains.Close()
			dev.Close()
			conn.Close()
		})
		return p
	}
}

// The plane on the kernel's ipsets, addresses and rules: all moves, with restarts between them. It
// takes none of its own changes for foreign ones (DP-31 to DP-33).
func TestRealSetsAndRules(t *testing.T) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			w := planetest.World{Family: f}
			table := startTable(w)
			_, open := realLab(t, f)
			p := open()
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
				if err != nil {
					t.Fatal(err)
				}
				p = open()
				if res, err := planetest.ResetAll(t.Context(), p, table); err != nil || len(res.Dropped)+
					len(res.Later) > 0 {
					t.Fatalf("%s: restart: %v %v", m.name, res, err)
				}
				is, err := p.Dump()
				if err != nil {
					t.Fatal(err)
				}
				if is != was {
					t.Fatalf("%s: a restart makes of\n%s\nthis\n%s", m.name, was, is)
				}
			}
		})
	}
}
