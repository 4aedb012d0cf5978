package plural

import "testing"

func TestCount(t *testing.T) {
	for n, want := range []string{"0 entries", "1 entry", "2 entries"} {
		if got := Count(n, "entry", "entries"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
