package planetest

import (
	"context"
	"fmt"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/trace"
	"testing"
)

// Tracer is a plane that reports the kernel state: [kube-proxy/mode.Tracer].
type Tracer interface {
	TracePacket(ctx context.Context, p trace.Packet) (trace.Kernel, error)
	Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error
}

// tracer returns the plane as a Tracer, if it is one. A test's wrapper of a plane has a method
// Tracer, which may return nil.
func tracer(p Plane) (Tracer, bool) {
	if w, ok := p.(interface{ Tracer() Tracer }); ok {
		l := w.Tracer()
		return l, l != nil
	}
	l, ok := p.(Tracer)
	return l, ok
}

// maxDifferences is how many differences a failure names.
const maxDifferences = 10

// differences returns the differences between the kernel and the table, up to a limit.
func differences(ctx context.Context, l Tracer, want *lb.Table) ([]trace.Difference, error) {
	return someDifferences(ctx, l, want, maxDifferences)
}

func someDifferences(ctx context.Context, l Tracer, want *lb.Table, most int) (found []trace.Difference, err error) {
	err = l.Differences(ctx, want, func(d trace.Difference) bool {
		found = append(found, d)
		return len(found) < most
	})
	return found, err
}

// Differences returns the kernel's differences from the table, a hundred at most.
func Differences(t testing.TB, l Tracer, want *lb.Table) []trace.Difference {
	t.Helper()
	found, err := someDifferences(t.Context(), l, want, 100)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// listed is differences as text, a line each.
func listed(found []trace.Difference) string {
	var b strings.Builder
	for _, d := range found {
		fmt.Fprintf(&b, "%s (of %s): desired %q, actual %q\n", d.Object, d.Key, d.Desired, d.Actual)
	}
	return b.String()
}
