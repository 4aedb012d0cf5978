package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// heir is a plane that counts how often the rules of other modes are gone.
type heir struct {
	mode.Plane
	told int
}

func (h *heir) OthersGone() error {
	h.told++
	return nil
}

// EB-27: pods wait for the first attempt to remove the rules of other modes, even one that fails.
// If the process ends meanwhile, they wait for the next process.
func TestOthersGone(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		attempts []error
		ends     bool // during the last attempt
		want     int
	}{
		"removed":                   {attempts: []error{nil}, want: 1},
		"refused, then it ends":     {attempts: []error{refused, refused, refused}, ends: true, want: 1},
		"it ends":                   {attempts: []error{nil}, ends: true},
		"it ends, which is refused": {attempts: []error{context.Canceled}, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				defer end()
				n := 0
				remove := func(context.Context, mode.Removal) (mode.Report, error) {
					n++
					if c.ends && n == len(c.attempts) {
						end()
					}
					return mode.Report{}, c.attempts[n-1]
				}
				cfg, err := loadConfig([]string{"--hostname-override=n1"})
				if err != nil {
					t.Fatal(err)
				}
				p := newProxy(nil, cfg, nil, slog.New(slog.DiscardHandler))
				p.modes = mode.List{{Name: "old", Objects: mode.Objects{Rules: "old", Remove: remove}}}
				p.choice.Mode = mode.Mode{Name: "new", Objects: mode.Objects{Rules: "new"}}
				h := &heir{}
				p.families = []*family{{name: lb.IPv4, plane: h}}
				p.begun = newFirsts(p.families)
				p.begun.add(lb.IPv4)
				p.cleanOthers(ctx)
				if n != len(c.attempts) || h.told != c.want {
					t.Errorf("%d attempts, told %d times; want %d and %d", n, h.told, len(c.attempts), c.want)
				}
			})
		})
	}
}
