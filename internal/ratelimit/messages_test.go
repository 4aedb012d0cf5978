package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

func TestMessages(t *testing.T) {
	var m Messages
	now := time.Now()
	told := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			if m.Once(fmt.Sprint(i), now) {
				n++
			}
		}
		return n
	}
	for i, step := range []struct {
		after                time.Duration
		from, to             int
		wantTold, wantUntold int
	}{
		{0, 0, 10, 10, 0},
		{0, 0, 10, 0, 0}, // each once, and what was told is not withheld
		{0, 10, 1000, Burst - 10, 1000 - Burst},
		{Gap, 1000, 1010, 1, 0}, // the others are not due yet
		{WithheldGap - Gap, 1010, 1010, 0, 9},
		{2 * Burst * Gap, 2000, 3000, Burst, 1000 - Burst},
		{2 * WithheldGap, 0, 0, 0, 0},
	} {
		now = now.Add(step.after)
		got := told(step.from, step.to)
		if untold := m.Withheld(now); got != step.wantTold || untold != step.wantUntold {
			t.Errorf("step %d: told %d and withheld %d, want %d and %d", i, got, untold, step.wantTold, step.wantUntold)
		}
	}
	if _, due := m.Due(); due {
		t.Error("something is withheld, and all was told")
	}
	for i := range 3 * maxTold {
		now = now.Add(Gap)
		m.Once(fmt.Sprint("another ", i), now)
	}
	if len(m.told) > maxTold {
		t.Errorf("%d messages are remembered", len(m.told))
	}
}
