package scm

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// manager records its calls.
type manager struct {
	requests chan Request
	reported []Status
}

func (m *manager) Requests() <-chan Request { return m.requests }
func (m *manager) Report(s Status)          { m.reported = append(m.reported, s) }

var starting, running = Status{State: StartPending, Hint: hint}, Status{State: Running}

func stopping(n uint32) Status { return Status{State: StopPending, Checkpoint: n, Hint: hint} }

// The states of a service, from its start to its end (CF-46).
func TestServe(t *testing.T) {
	broken := errors.New("broken")
	for _, tc := range []struct {
		name     string
		requests []Request
		after    time.Duration // time from the request to end until the work ends
		fails    error         // the work ends by itself, with this; ErrEnded for nil
		last     error         // error of the work after a request to end
		want     []Status
		cause    error
		err      error
		reloads  int
	}{
		{name: "stop", requests: []Request{Stop}, want: []Status{starting, running, stopping(1)}, cause: ErrStopped},
		{name: "shutdown", requests: []Request{Shutdown}, want: []Status{starting, running, stopping(1)},
			cause: ErrShutdown},
		{name: "asked how it is", requests: []Request{Interrogate, Interrogate, Stop},
			want: []Status{starting, running, running, running, stopping(1)}, cause: ErrStopped},
		{name: "a stop that takes long counts up", requests: []Request{Stop}, after: 3*every + every/2,
			want: []Status{starting, running, stopping(1), stopping(2), stopping(3), stopping(4)}, cause: ErrStopped},
		{name: "a second stop, and a question, while it stops", requests: []Request{Stop, Shutdown, Interrogate,
			ParamChange}, after: time.Second,
			want: []Status{starting, running, stopping(1), stopping(1), stopping(1), stopping(1)}, cause: ErrStopped},
		{name: "the configuration is read again", requests: []Request{ParamChange, Stop},
			want: []Status{starting, running, running, stopping(1)}, cause: ErrStopped, reloads: 1},
		{name: "the work fails", fails: broken, want: []Status{starting, running}, err: broken},
		{name: "the work ends by itself", fails: ErrEnded, want: []Status{starting, running}, err: ErrEnded},
		{name: "the work fails when it is stopped", requests: []Request{Stop}, last: broken,
			want: []Status{starting, running, stopping(1)}, cause: ErrStopped, err: broken},
		{name: "the work takes no notice of time while it runs", requests: nil, fails: ErrEnded, after: 10 * every,
			want: []Status{starting, running}, err: ErrEnded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &manager{requests: make(chan Request)}
				var cause error
				reloads := 0
				go func() {
					for _, r := range tc.requests {
						m.requests <- r
					}
				}()
				err := Serve(t.Context(), m, func(ctx context.Context) error {
					if tc.fails != nil {
						time.Sleep(tc.after)
						if errors.Is(tc.fails, ErrEnded) {
							return nil
						}
						return tc.fails
					}
					<-ctx.Done()
					cause = context.Cause(ctx)
					time.Sleep(tc.after + time.Millisecond)
					return tc.last
				}, func() { reloads++ })
				if !slices.Equal(m.reported, tc.want) {
					t.Errorf("reported %v, want %v", m.reported, tc.want)
				}
				if !errors.Is(err, tc.err) || !errors.Is(cause, tc.cause) || reloads != tc.reloads {
					t.Errorf("error %v, cause %v, %d reloads; want %v, %v, %d", err, cause, reloads, tc.err, tc.cause,
						tc.reloads)
				}
			})
		})
	}
}
