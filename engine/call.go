package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"kube-proxy/plane"
)

// Write is one finished call of the plane; "load" is the end of the work that a Reset postponed. An
// audit that found all state missing is reported twice: once with its error, and again with the
// frontends as Changes after a Reset, reported too, restored them.
type Write struct {
	Verb    string // "apply", "reset", "load", "setnode", "audit" or "probe"
	Changes int    // changes offered; frontends written by reset and load; objects repaired by audit
	Later   int    // frontends that a "reset" postponed
	Took    time.Duration
	Err     error

	again bool // something of it has failed before
	wrote bool // it updated the kernel
}

// call runs f, a call of the plane that may add details to w. The call is counted and reported; a
// panic becomes an error. After an error that leaves the kernel's state unknown, the engine writes
// everything again.
func (e *Engine) call(w *Write, f func() error) error {
	start := time.Now()
	w.Err = e.guard("plane, ", w.Verb, f)
	end := time.Now()
	w.Took = end.Sub(start)
	e.stats.called(w, end)
	if w.Verb != "audit" { // a program that always undoes our work would make changes wait for MinSyncPeriod forever
		e.writer.end = end
	}
	e.written(*w)
	if w.Err != nil && w.Verb != "reset" && (isPanic(w.Err) || errors.Is(w.Err, plane.ErrStateLost)) {
		e.lose(w, end)
	}
	return w.Err
}

// written reports a write.
func (e *Engine) written(w Write) {
	if e.cfg.Written != nil {
		e.cfg.Written(w)
	}
}

// panicked is a panic turned into an error (DP-61).
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// guard calls f and converts a panic into an error; each such error is counted, and its stack
// logged. in and of name the work of f.
func (e *Engine) guard(in, of string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &panicked{v, debug.Stack()}
			e.stats.update(func(s *Stats) { s.Panics++ })
			if e.panics.First(p.Error()) {
				e.cfg.Log.Error("Recovered from a panic", "in", in+of, "panic", v, "stack", string(p.stack))
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
