package mode_test

import (
	"context"
	"errors"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// A receiver that stops gets no more reports and no error; one that no longer waits gets no more
// reports and an error.
func TestTellerEnds(t *testing.T) {
	heard := 0
	enough := mode.NewTeller(t.Context(), func(trace.Difference) bool { heard++; return heard < 2 })
	for i, want := range []bool{false, true, true} {
		if err := enough.Tell(lb.Key{}, "set x", "there", ""); (err != nil) != want || enough.Err() != err {
			t.Errorf("telling number %d: %v, %v", i, err, enough.Err())
		}
	}
	if err := enough.Done(enough.Err()); err != nil || heard != 2 {
		t.Errorf("%v after %d", err, heard)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	late := mode.NewTeller(ctx, func(trace.Difference) bool { t.Error("told"); return true })
	if late.Tell(lb.Key{}, "set x", "there", "") == nil || !errors.Is(late.Done(nil), context.Canceled) {
		t.Errorf("%v", late.Err())
	}
	if broken := errors.New("broken"); mode.NewTeller(t.Context(), nil).Done(broken) != broken {
		t.Error("an error of reading is lost")
	}
}
