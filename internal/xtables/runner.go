//go:build linux

package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Runner runs programs.
type Runner interface {
	// LookPath returns the path of a program.
	LookPath(name string) (string, error)
	// Pipe runs a program. in writes its standard input while it runs, out reads its standard
	// output, which has 16 MB with 5,000 services; either may be nil. An error of in ends the
	// program before it has seen the end of its input. The error has what the program wrote to
	// standard error.
	Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string, args ...string) error
}

// Output runs a program and returns its standard output.
func Output(ctx context.Context, run Runner, name string, args ...string) ([]byte, error) {
	var text bytes.Buffer
	err := run.Pipe(ctx, nil, func(r io.Reader) error {
		_, err := text.ReadFrom(r)
		return err
	}, name, args...)
	return text.Bytes(), err
}

// System runs the programs of this host.
type System struct {
	Lock string // instead of /run/xtables.lock, if not empty
}

// LookPath is part of [Runner].
func (System) LookPath(name string) (string, error) { return exec.LookPath(name) }

// Pipe is part of [Runner].
func (s System) Pipe(ctx context.Context, in func(io.Writer) error, out func(io.Reader) error, name string,
	args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if s.Lock != "" {
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+s.Lock)
	}
	errs := &shortText{}
	cmd.Stderr = errs
	// A signalled program gets time to release the lock.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	widen(stdin)
	widen(stdout)
	if err := cmd.Start(); err != nil { // the child runs in the network namespace of this thread
		return err
	}
	wrote := make(chan error, 1)
	go func() {
		var err error
		if in != nil {
			err = in(stdin)
		}
		if err != nil && cmd.Process != nil {
			cmd.Process.Kill() // at the end of its input it would commit the part that it has read
		}
		stdin.Close()
		wrote <- err
	}()
	// Its child processes may hold its output open after it has ended.
	ended := make(chan struct{})
	defer close(ended)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-ended:
		case <-time.After(cmd.WaitDelay + time.Second):
			stdout.Close()
			stdin.Close()
		}
	})()
	var readErr error
	if out != nil {
		readErr = out(stdout)
	}
	io.Copy(io.Discard, stdout) // so that the program can end
	writeErr := <-wrote
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		err = nil // it succeeded and its output is read; only another process holds its stderr open
	}
	switch {
	case err != nil:
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if writeErr != nil && len(errs.text) == 0 {
			err = fmt.Errorf("%w: %w", writeErr, err)
		}
		return &RunError{Name: name, Said: strings.TrimSpace(string(errs.text)), Err: err}
	case writeErr != nil:
		return fmt.Errorf("%s: write its input: %w", name, writeErr)
	case readErr != nil:
		return fmt.Errorf("%s: %w", name, readErr)
	}
	return nil
}

// widen enlarges a pipe for most of the input or output: on a busy machine the other end takes long
// to run again. If that is not allowed, the pipe stays as it is.
func widen(pipe any) {
	const size = 1 << 20
	f, ok := pipe.(syscall.Conn)
	if !ok {
		return
	}
	if c, err := f.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size) })
	}
}

// shortText keeps the beginning of the text written to it.
type shortText struct{ text []byte }

func (t *shortText) Write(b []byte) (int, error) {
	const most = 1000
	t.text = append(t.text, b[:min(most-len(t.text), len(b))]...)
	return len(b), nil
}

// RunError is the failure of a program.
type RunError struct {
	Name, Said string
	Err        error
}

func (e *RunError) Error() string {
	if e.Said == "" {
		return e.Name + ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s: %v: %s", e.Name, e.Err, e.Said)
}

func (e *RunError) Unwrap() error { return e.Err }
