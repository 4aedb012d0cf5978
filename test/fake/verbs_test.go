//go:build linux

package fake

import (
	"errors"
	"math/rand/v2"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// The verbs of a plane, as every other proves them.
func TestVerbs(t *testing.T) {
	planetest.Verbs(t, func(testing.TB) planetest.Kernel {
		planes := map[lb.Family]*Plane{}
		next := func(f lb.Family) (planetest.Plane, error) {
			if planes[f] == nil {
				planes[f] = New(f)
			} else {
				planes[f] = planes[f].Successor()
			}
			return planes[f], nil
		}
		return planetest.Kernel{
			New: next,
			Slow: func(f lb.Family) (planetest.Plane, error) {
				p, err := next(f)
				planes[f].Slow(5, 10)
				return p, err
			},
			Damage: func(f lb.Family, _ *rand.Rand) error {
				if !planes[f].StealAny(true) {
					return errors.New("there is nothing to steal")
				}
				return nil
			},
			Wipe:     func(f lb.Family) error { planes[f].Lose(true); return nil },
			Reported: true,
		}
	})
}
