package planetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"kube-proxy/engine"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Plane is the tested plane. One that is an io.Closer is closed when its scenario ends.
type Plane = engine.Plane

// Changes returns the changes of [lb.Table.Replace] without the conflicts.
func Changes(changes []lb.Change, _ []lb.Conflict) []lb.Change { return changes }

// ResetAll makes the plane hold the whole table: it resets the plane, and applies the postponed
// frontends in pieces, as the engine does.
func ResetAll(ctx context.Context, p Plane, want *lb.Table) (plane.ResetResult, error) {
	res, err := p.Reset(ctx, want)
	if err != nil {
		return res, fmt.Errorf("reset: %w", err)
	}
	seen := map[lb.Key]bool{}
	for _, k := range res.Later {
		if want.Get(k) == nil || seen[k] {
			return res, fmt.Errorf("reset: %s is left for later, but twice, or is no row of the table", k)
		}
		seen[k] = true
	}
	weight := plane.Weights(p)
	for later := res.Later; len(later) > 0; {
		var piece []lb.Change
		for used := 0; len(piece) < len(later) && (used == 0 || used < p.MaxBatchWeight()); {
			row := want.Get(later[len(piece)])
			piece = append(piece, lb.Change{Key: row.Key, New: row})
			used += max(1, weight(row))
		}
		if err := ApplyAll(ctx, p, piece); err != nil {
			return res, fmt.Errorf("apply %d of %d rows that a reset left for later: %w", len(piece), len(res.Later),
				err)
		}
		later = later[len(piece):]
	}
	return res, nil
}

// ApplyAll lets the plane apply changes until it postpones none. each, if given, is called after
// each call.
func ApplyAll(ctx context.Context, p plane.Plane, changes []lb.Change, each ...func()) error {
	for calls := 1; ; calls++ {
		res, err := p.Apply(ctx, changes)
		if err != nil {
			return err
		}
		for _, f := range each {
			f()
		}
		if len(res.Later) == 0 {
			return nil
		}
		if calls == 500 {
			return fmt.Errorf("after %d calls %d changes are left for later", calls, len(res.Later))
		}
		changes = slices.DeleteFunc(slices.Clone(changes), func(c lb.Change) bool {
			return !slices.Contains(res.Later, c.Key)
		})
	}
}

// Staged is ApplyAll that returns the number of calls. None may write more than most, as counted by
// written.
func Staged(t testing.TB, p plane.Plane, changes []lb.Change, written func() uint64, most uint64) (calls int) {
	t.Helper()
	before := written()
	err := ApplyAll(t.Context(), p, changes, func() {
		calls++
		now := written()
		if now-before > most {
			t.Errorf("call %d wrote %d, want %d at most", calls, now-before, most)
		}
		before = now
	})
	if err != nil {
		t.Fatal(err)
	}
	return calls
}
