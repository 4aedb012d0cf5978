package redirect

import (
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// TestRemove: no object of any redirector is left, and those of other programs stay.
func TestRemove(t *testing.T) {
	for _, w := range worlds() {
		t.Run(w.Family.String(), func(t *testing.T) {
			netlab.EnterForTest(t)
			b := &bench{t: t, world: w}
			ctx := t.Context()
			for _, way := range ways {
				c, err := way.make(Config{Family: w.Family})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Reset(ctx, b.n(), []Entry{cluster(b.key(b.vip, 80, lb.TCP), to(80))}); err != nil {
					t.Fatal(err)
				}
				kept, err := Remove(ctx, []lb.Family{w.Family}, c.Name())
				if err != nil || len(kept.Removed) != 0 {
					t.Errorf("beside it: removed %v, %v", kept.Removed, err)
				}
				if n, err := c.Audit(ctx, true); n != 0 || err != nil {
					t.Errorf("%d things of %s were removed beside it, %v", n, c.Name(), err)
				}
				c.Close()
				gone, err := Remove(ctx, []lb.Family{w.Family}, "")
				if err != nil || len(gone.Removed) == 0 {
					t.Errorf("%s: removed %v, %v", c.Name(), gone.Removed, err)
				}
				again, err := Remove(ctx, []lb.Family{w.Family}, "")
				if err != nil || len(again.Removed) != 0 {
					t.Errorf("%s, again: removed %v, %v", c.Name(), again.Removed, err)
				}
				t.Log(gone.Removed)
			}
		})
	}
}
