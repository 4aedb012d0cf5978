package scm

import (
	"context"
	"errors"
	"time"
)

// State is the state of a service in the manager.
type State uint8

// The states that a service reports itself; that it has stopped follows from the end of [Serve].
const (
	StartPending State = iota + 1
	Running
	StopPending
)

// Request is a request of the manager.
type Request uint8

// The requests.
const (
	Interrogate Request = iota + 1 // report the state again
	Stop                           // an operator stops the service
	Shutdown                       // the machine shuts down
	ParamChange                    // the configuration has changed (sc control NAME paramchange)
)

// Status is one report.
type Status struct {
	State State
	// Checkpoint counts up while a state is pending; else it is 0.
	Checkpoint uint32
	// Hint is how long the next report may take while a state is pending; else it is 0.
	Hint time.Duration
}

// Manager is the service control manager.
type Manager interface {
	// Requests are read for as long as the service lives.
	Requests() <-chan Request
	// Report sends the service's status.
	Report(Status)
}

const (
	// hint is the time for which the manager waits for the next report of a stopping service.
	hint = 10 * time.Second
	// every is the time between two such reports.
	every = hint / 4
)

// ErrStopped is the cause of the context's end when the manager stops the service, ErrShutdown when
// the machine shuts down. ErrEnded means that the work ended by itself, without an error.
var (
	ErrStopped  = errors.New("the service control manager stops the service")
	ErrShutdown = errors.New("the machine shuts down")
	ErrEnded    = errors.New("the service ended without a request to stop")
)

// Serve runs the work, and ends its context when the manager requests it. It returns the error of
// the work, and nil only after a request to end. reload is called when the configuration may have
// changed; it must not block.
func Serve(ctx context.Context, m Manager, work func(context.Context) error, reload func()) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	m.Report(Status{State: StartPending, Hint: hint})
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	status := Status{State: Running}
	m.Report(status)

	alive := time.NewTicker(every)
	defer alive.Stop()
	for {
		select {
		case err := <-done:
			if err == nil && ctx.Err() == nil {
				err = ErrEnded
			}
			return err
		case <-alive.C:
			if status.State != StopPending {
				continue
			}
			status.Checkpoint++
		case r := <-m.Requests():
			switch {
			case r == ParamChange && status.State == Running:
				reload()
			case (r == Stop || r == Shutdown) && status.State == Running:
				status = Status{State: StopPending, Checkpoint: 1, Hint: hint}
				end(map[Request]error{Stop: ErrStopped, Shutdown: ErrShutdown}[r])
			}
		}
		m.Report(status)
	}
}
