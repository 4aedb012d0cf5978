//go:build linux

package nftables

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// Chains of classes and shapes that no frontend uses stay for a while. If another program damages
// them, the next audit, Reset or restart repairs them. The audit needs no Reset for that, and a new
// Service that needs the chains finds them intact.
func TestUnusedChainDamaged(t *testing.T) {
	kerneltest.Later(t)
	w := planetest.World{Family: lb.IPv4}
	audit := func(full bool) func(*testing.T, *Plane, *lb.Table) *Plane {
		return func(t *testing.T, p *Plane, _ *lb.Table) *Plane {
			if n, err := p.Audit(t.Context(), full); err != nil || n == 0 {
				t.Errorf("the audit repaired %d, error %v", n, err)
			}
			return p
		}
	}
	for how, look := range map[string]func(*testing.T, *Plane, *lb.Table) *Plane{
		"audit of notifications": audit(false),
		"full audit of a part": func(t *testing.T, p *Plane, tab *lb.Table) *Plane {
			p.window = 10
			return audit(true)(t, p, tab)
		},
		"full audit without notifications": func(t *testing.T, p *Plane, tab *lb.Table) *Plane {
			p.mon.take()
			return audit(true)(t, p, tab)
		},
		"Reset": func(t *testing.T, p *Plane, tab *lb.Table) *Plane {
			reset(t, p, tab)
			return p
		},
		"full audit after the Service came": func(t *testing.T, p *Plane, tab *lb.Table) *Plane {
			come(t, p, tab)
			return audit(true)(t, p, tab)
		},
		"restart": func(t *testing.T, p *Plane, tab *lb.Table) *Plane {
			q := newPlane(t, w.Family)
			reset(t, q, tab)
			return q
		},
	} {
		t.Run(how, func(t *testing.T) {
			tab := w.Table(3, 3)
			p := started(t, w, tab)
			for what, damage := range map[string]struct{ verdict, chain string }{
				"chains flushed":        {chain: "flush chain T %s"},
				"rules added":           {chain: "insert rule T %s drop"},
				"verdicts lead nowhere": {verdict: "delete element T %s { %d }; add element T %[1]s { %[2]d : drop }"},
				"chains deleted":        {"delete element T %s { %d }", "flush chain T %s; delete chain T %[1]s"},
			} {
				come(t, p, tab)
				want := dump(t, p)
				for _, i := range []int{100, 101} {
					apply(t, p, planetest.Changes(tab.Replace(lb.Owner{Name: name(w, i)}, nil)))
				}
				runNFT(t, strings.ReplaceAll(onUnused(t, p.st, damage.verdict, damage.chain), " T ", " ip kube-proxy "))
				noticed(t, p)
				p = look(t, p, tab)
				differsNowhere(t, p, tab)
				come(t, p, tab)
				differsNowhere(t, p, tab)
				isDump(t, p, want, what, "and a Service that needs the chains again")
				if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
					t.Errorf("%s: a full audit then repaired %d, error %v", what, n, err)
				}
			}
		})
	}
}

// come adds Services that need chains which others do not.
func come(t *testing.T, p *Plane, tab *lb.Table) {
	w := planetest.World{Family: p.ip.Family}
	apply(t, p, planetest.Changes(tab.Replace(w.Full(100, 500, 7, 2, 0))))
	apply(t, p, planetest.Changes(tab.Replace(w.Full(101, 600, 5, 1, time.Hour))))
}

// onUnused returns a script with a line for each object that no frontend needs: elements of maps
// that refer to chains, and then those chains.
func onUnused(t *testing.T, st *state, verdict, chain string) string {
	t.Helper()
	var verdicts, chains []string
	add := func(c string, key uint32, maps ...string) {
		for _, m := range maps {
			verdicts = append(verdicts, fmt.Sprintf(verdict, m, key))
		}
		chains = append(chains, fmt.Sprintf(chain, c))
	}
	classes, shapes := st.needs()
	for c := range st.classes {
		if !classes[c] {
			add("nat."+c.String(), uint32(c), "nat-classes", "filter-classes")
		}
	}
	for s := range st.shapes {
		if !shapes[s] {
			add(s.chain(), s.number(), s.scope.String()+"-shapes")
		}
	}
	if len(chains) < 8 {
		t.Fatalf("only %q are unused", chains)
	}
	script := ""
	if verdict != "" {
		script = strings.Join(verdicts, "\n") + "\n"
	}
	if chain != "" {
		script += strings.Join(chains, "\n")
	}
	return script
}

func differsNowhere(t *testing.T, p *Plane, tab *lb.Table) {
	t.Helper()
	err := p.Differences(t.Context(), tab, func(d trace.Difference) bool {
		t.Errorf("%s differs: desired %s, actual %s", d.Object, d.Desired, d.Actual)
		return true
	})
	if err != nil {
		t.Error(err)
	}
}
