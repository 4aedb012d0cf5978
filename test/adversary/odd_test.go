package adversary_test

import (
	"testing"
	"testing/synctest"

	"kube-proxy/lb"
	"kube-proxy/test/adversary"
)

// The shape of one tenant's objects changes nothing for others: a change of another Service has the
// same cost as without them, and few lines are logged.
func TestOddShapes(t *testing.T) {
	scale := 4 // bench measures them as they are
	if testing.Short() {
		scale = 20
	}
	for _, shape := range adversary.Odd(scale) {
		t.Run(shape.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, lb.IPv4, 1)
				w.settle()
				alone, lines := w.change(1), w.log.lines.Load()
				w.do(shape.Events()...)
				synctest.Wait()
				w.settle()
				w.belong()
				if n := w.log.lines.Load() - lines; n > 100 {
					w.errorf("%d lines of log", n)
				}
				if c := w.change(2); c.beyond(alone) {
					w.errorf("beside it a change costs %+v, without it %+v", c, alone)
				}
				w.report()
			})
		})
	}
}
