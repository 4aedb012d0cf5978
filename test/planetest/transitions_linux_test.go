package planetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/fake"
)

// The fake plane keeps all rules of a plane, so the walk must find nothing. TestTransitionsFind
// proves that the walk can find something.
func TestTransitionsOfFake(t *testing.T) {
	Transitions(t, Config{New: func(f lb.Family) (Plane, error) { return fake.New(f), nil }})
}

// forgetful is a plane that, at times, does not notice a deleted frontend.
type forgetful struct{ *fake.Plane }

func (p forgetful) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	kept := slices.DeleteFunc(slices.Clone(changes), func(c lb.Change) bool {
		return c.New == nil && c.Key.Port == 9000
	})
	return p.Plane.Apply(ctx, kept)
}

func TestTransitionsFind(t *testing.T) {
	states, err := statesOf(load(t, ""), lb.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	w := &walk{
		cfg: Config{New: func(f lb.Family) (Plane, error) {
			made++
			if made > 1 {
				return fake.New(f), nil
			}
			return forgetful{fake.New(f)}, nil
		}},
		family: lb.IPv4, states: states, rnd: rand.New(rand.NewPCG(1, 0)), moves: 20 * len(states),
	}
	err = w.run()
	if err == nil || !strings.Contains(err.Error(), ":9000/tcp") {
		t.Fatalf("a plane that forgets port 9000 gave %v", err)
	}
	t.Logf("found after %d moves:\n%v", w.moved, err)
}
