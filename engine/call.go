package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"kube-proxy/plane"
)

// Write is one finished call of the plane; "load" is the end of what a Reset had left for later. An audit that found
// everything gone comes twice: once with its error, and once with the rows as Changes when a Reset, which comes too, has
// brought them back.
type Write struct {
	Verb    string // "apply", "reset", "load", "setnode", "audit" or "probe"
	Changes int    // offered changes; rows that were written for "reset" and "load"; mended objects for "audit"; 0 for "probe"
	Later   int    // rows that a "reset" left for later
	Took    time.Duration
	Err     error

	again bool // something of it has failed before
	wrote bool // it brought something up to date in the kernel
}

// call has the plane do something, which f may say more of in w. The call is counted and told; a panic is an error. After an
// error by which the plane does not know what the kernel holds, everything is written anew.
func (e *Engine) call(w *Write, f func() error) error {
	start := time.Now()
	w.Err = e.guard("plane, ", w.Verb, f)
	end := time.Now()
	w.Took = end.Sub(start)
	e.stats.called(w, end)
	if w.Verb != "audit" { // who undoes our work all the time would keep changes waiting for MinSyncPeriod for ever
		e.writer.end = end
	}
	e.written(*w)
	if w.Err != nil && w.Verb != "reset" && (isPanic(w.Err) || errors.Is(w.Err, plane.ErrStateLost)) {
		e.lose(w, end)
	}
	return w.Err
}

// written tells of a write.
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

// guard calls f and turns a panic into an error; every such error is counted, and its stack logged. in and of say what f does.
func (e *Engine) guard(in, of string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &panicked{v, debug.Stack()}
			e.stats.update(func(s *Stats) { s.Panics++ })
			if e.panics.first(p.Error()) {
				e.cfg.Log.Error("panic caught", "in", in+of, "panic", v, "stack", string(p.stack))
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
