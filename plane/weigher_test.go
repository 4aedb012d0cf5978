package plane_test

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// copier is a plane whose frontends cost ten operations each.
type copier struct{ plane.Plane }

func (copier) Weigh(*lb.Frontend) int { return 10 }

// A plane that implements Weigher weighs its frontends itself. A removed one weighs 1 in every
// plane.
func TestWeights(t *testing.T) {
	f := &lb.Frontend{Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Drop}}}
	own, usual := plane.Weights(copier{}), plane.Weights(struct{ plane.Plane }{})
	if own(f) != 10 || own(nil) != 1 || usual(f) != 1 || usual(nil) != 1 {
		t.Errorf("own %d and %d, usual %d and %d", own(f), own(nil), usual(f), usual(nil))
	}
}
