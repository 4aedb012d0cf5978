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
func TestReporterEnds(t *testing.T) {
	noticed := 0
	enough := mode.NewReporter(t.Context(), func(trace.Difference) bool { noticed++; return noticed < 2 })
	for i, want := range []bool{false, true, true} {
		if err := enough.Report(lb.Key{}, "set x", "there", ""); (err != nil) != want || enough.Err() != err {
			t.Errorf("telling number %d: %v, %v", i, err, enough.Err())
		}
	}
	if err := enough.Done(enough.Err()); err != nil || noticed != 2 {
		t.Errorf("%v after %d", err, noticed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	late := mode.NewReporter(ctx, func(trace.Difference) bool { t.Error("reported"); return true })
	if late.Report(lb.Key{}, "set x", "there", "") == nil || !errors.Is(late.Done(nil), context.Canceled) {
		t.Errorf("%v", late.Err())
	}
	if broken := errors.New("broken"); mode.NewReporter(t.Context(), nil).Done(broken) != broken {
		t.Error("an error of reading is lost")
	}
}
