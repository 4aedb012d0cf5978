package mode

import (
	"slices"
	"testing"
)

// A report has what was removed, with its number, and what stayed; no removed object is no line.
func TestReport(t *testing.T) {
	var r Report
	r.Count(0, "sets of %s", "a")
	r.Count(2, "chains of %s", "b")
	r.Leave("table %s: %v", "c", 3)
	r.Leave("d")
	if !slices.Equal(r.Removed, []string{"2 chains of b"}) || !slices.Equal(r.Left, []string{"table c: 3", "d"}) {
		t.Errorf("%+v", r)
	}
}
