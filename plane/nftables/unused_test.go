//go:build linux

package nftables

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// Chains of classes and shapes that no frontend uses stay for a while. If another program damages
// them, the next audit, Reset or restart repairs them. The audit needs no Reset for that, and a new
// Service that needs the chains finds them intact.
func TestUnusedChainDamaged(t *testing.T) {
	audit := func(full bool) func(*testing.T, *Plane, *lb.Table) *Plane {
		return func(t *testing.T, p *Plane, _ *lb.Table) *Plane {
			if n, err := p.Audit(t.Context(), full); err != nil || n == 0 {
				t.Errorf("the audit repaired %d, error %v", n, err)
			}
			return p
		}
	}
	looks := map[string]func(*testing.T, *Plane, *lb.Table) *Plane{
		"audit of notifications": audit(false),
		"full audit":             audit(true),
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
			q := newPlane(t, p.ip.Family)
			reset(t, q, tab)
			return q
		},
	}
	damages := map[string]func(u unused) string{
		"chains flushed":   func(u unused) string { return u.chain("flush chain T %s\n") },
		"rules replaced":   func(u unused) string { return u.chain("flush chain T %s\nadd rule T %[1]s counter\n") },
		"rules added":      func(u unused) string { return u.chain("insert rule T %s drop\n") },
		"verdicts deleted": func(u unused) string { return u.verdict("delete element T %s { %d }\n") },
		"verdicts lead nowhere": func(u unused) string {
			return u.verdict("delete element T %s { %d }\nadd element T %[1]s { %[2]d : drop }\n")
		},
		"chains deleted": func(u unused) string {
			return u.verdict("delete element T %s { %d }\n") + u.chain("flush chain T %s\n") +
				u.chain("delete chain T %s\n")
		},
	}
	for what, damage := range damages {
		for how, look := range looks {
			t.Run(what+"/"+how, func(t *testing.T) {
				w := planetest.World{Family: lb.IPv4}
				tab := w.Table(3, 3)
				p := started(t, w, tab)
				come(t, p, tab)
				want := dump(t, p)
				for _, i := range []int{100, 101} {
					apply(t, p, planetest.Changes(tab.Replace(lb.Owner{Name: name(w, i)}, nil)))
				}
				u := unusedOf(p.st)
				if len(u.chains) < 8 {
					t.Fatalf("only %q are unused", u.chains)
				}

				runNFT(t, strings.ReplaceAll(damage(u), " T ", " ip kube-proxy "))
				noticed(t, p)
				p = look(t, p, tab)
				differsNowhere(t, p, tab)
				come(t, p, tab)
				differsNowhere(t, p, tab)
				isDump(t, p, want, "a Service that needs the chains again")
				if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
					t.Errorf("a full audit then repaired %d, error %v", n, err)
				}
			})
		}
	}
}

// come adds Services that need chains which others do not.
func come(t *testing.T, p *Plane, tab *lb.Table) {
	w := planetest.World{Family: p.ip.Family}
	apply(t, p, planetest.Changes(tab.Replace(w.Full(100, 500, 7, 2, 0))))
	apply(t, p, planetest.Changes(tab.Replace(w.Full(101, 600, 5, 1, time.Hour))))
}

// unused lists the objects that no frontend needs: chains, and elements of the maps that refer to
// them.
type unused struct {
	chains   []string
	verdicts []verdictAt
}

type verdictAt struct {
	in  string
	key uint32
}

func unusedOf(st *state) (u unused) {
	classes, shapes := st.needs()
	for c := range st.classes {
		if !classes[c] {
			u.chains = append(u.chains, "nat."+c.String())
			u.verdicts = append(u.verdicts, verdictAt{"nat-classes", uint32(c)}, verdictAt{"filter-classes", uint32(c)})
		}
	}
	for s := range st.shapes {
		if !shapes[s] {
			u.chains = append(u.chains, s.chain())
			u.verdicts = append(u.verdicts, verdictAt{s.scope.String() + "-shapes", s.number()})
		}
	}
	return u
}

// chain returns a line for each chain, and verdict one for each element.
func (u unused) chain(format string) string {
	var b strings.Builder
	for _, c := range u.chains {
		fmt.Fprintf(&b, format, c)
	}
	return b.String()
}

func (u unused) verdict(format string) string {
	var b strings.Builder
	for _, v := range u.verdicts {
		fmt.Fprintf(&b, format, v.in, v.key)
	}
	return b.String()
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
