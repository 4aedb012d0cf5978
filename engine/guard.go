package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// panicked is a panic turned into an error (DP-61).
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// guard calls f and turns a panic into an error; every such error is counted, and its stack logged.
func (e *Engine) guard(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &panicked{v, debug.Stack()}
			e.stats.update(func(s *Stats) { s.Panics++ })
			if e.panics.first(p.Error()) {
				e.cfg.Log.Error("panic caught", "in", what, "panic", v, "stack", string(p.stack))
			}
			err = p
		}
	}()
	return f()
}

func isPanic(err error) bool {
	var p *panicked
	return errors.As(err, &p)
}

// once remembers what has been said already. It holds few texts: with many different ones it forgets.
type once map[string]struct{}

func (o *once) first(text string) bool {
	if _, said := (*o)[text]; said {
		return false
	}
	if *o == nil || len(*o) >= 1000 {
		*o = once{}
	}
	(*o)[text] = struct{}{}
	return true
}
