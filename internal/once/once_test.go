package once

import (
	"errors"
	"testing"
)

func TestKeys(t *testing.T) {
	var k Keys[int]
	if !k.First(1) || k.First(1) || !k.First(2) || k.First(2) {
		t.Error("a key is reported once")
	}
	for i := range 3 * maxKeys {
		k.First(10 + i)
	}
	if len(k.reported) > maxKeys {
		t.Errorf("remembers %d keys, want at most %d", len(k.reported), maxKeys)
	}
	var full Keys[int]
	for i := range maxKeys {
		full.First(i)
	}
	if full.First(0) {
		t.Error("a key is reported again before there are too many")
	}
	if !full.First(maxKeys) || len(full.reported) > maxKeys {
		t.Errorf("remembers %d keys, want at most %d", len(full.reported), maxKeys)
	}
	if last := 10 + 3*maxKeys - 1; k.First(last) {
		t.Error("the last key is reported again")
	}
}

func TestError(t *testing.T) {
	var e Error
	if e.Any() {
		t.Error("there was no error")
	}
	a, b := errors.New("a"), errors.New("b")
	for i, step := range []struct {
		err  error
		news bool
	}{{a, true}, {a, false}, {errors.New("a"), false}, {b, true}, {a, true}} {
		if got := e.News(step.err); got != step.news {
			t.Errorf("step %d: news %t, want %t", i, got, step.news)
		}
	}
	if !e.Any() {
		t.Error("there was an error")
	}
}
