package plane

import (
	"errors"
	"testing"
)

func TestMasqueradeMark(t *testing.T) {
	for _, tc := range []struct {
		bit  int
		mark uint32
	}{{-1, 0}, {0, 1}, {14, 0x4000}, {31, 0x80000000}, {32, 0}} {
		mark, err := MasqueradeMark(&tc.bit)
		if mark != tc.mark || (err == nil) != (tc.mark != 0) {
			t.Errorf("bit %d: mark %#x, error %v, want %#x", tc.bit, mark, err, tc.mark)
		}
	}
	if mark, err := MasqueradeMark(nil); mark != 0x4000 || err != nil {
		t.Errorf("no bit: mark %#x, error %v", mark, err)
	}
}

func TestNotSetUpIsStateLost(t *testing.T) {
	if !errors.Is(ErrNotSetUp, ErrStateLost) {
		t.Error("the engine would not answer it by a Reset")
	}
}
