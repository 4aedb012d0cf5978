package seedtest

import "testing"

func TestOf(t *testing.T) {
	t.Setenv(Env, "18446744073709551615")
	if got := Of(t); got != 1<<64-1 {
		t.Errorf("a walk cannot be repeated: %d", got)
	}
	t.Setenv(Env, "")
	if a, b := Of(t), Of(t); a == b {
		t.Error("all walks are one")
	}
}
