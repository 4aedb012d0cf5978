package planetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// tracer returns the plane as a Tracer, if it is one. A test's wrapper of a plane that must not
// trace has a method HidesTracer.
func tracer(p Plane) (mode.Tracer, bool) {
	l, ok := p.(mode.Tracer)
	_, hides := p.(interface{ HidesTracer() })
	return l, ok && !hides
}

// maxDifferences is how many differences are read at most.
const maxDifferences = 100

// differences returns the differences between the kernel and the table, up to a limit.
func differences(ctx context.Context, l mode.Tracer, want *lb.Table) (found []trace.Difference, err error) {
	err = l.Differences(ctx, want, func(d trace.Difference) bool {
		found = append(found, d)
		return len(found) < maxDifferences
	})
	return found, err
}

// Differences returns the kernel's differences from the table, a hundred at most.
func Differences(t testing.TB, l mode.Tracer, want *lb.Table) []trace.Difference {
	t.Helper()
	found, err := differences(t.Context(), l, want)
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
