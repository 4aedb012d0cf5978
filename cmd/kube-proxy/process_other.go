//go:build !windows

package main

import (
	"context"
	"io"
	"os"
	"syscall"
)

// standard are the streams for output and for errors.
func standard() (out, errOut io.Writer) { return os.Stdout, os.Stderr }

// ends are the signals that end the process.
func ends() []os.Signal { return []os.Signal{syscall.SIGTERM, syscall.SIGINT} }

// asService runs the work as the system's services do: here, as a process.
func asService(ctx context.Context, _ bool, work func(context.Context) error, _ func()) error {
	return work(ctx)
}

// noFollow is the flag of open that refuses symbolic links.
const noFollow = syscall.O_NOFOLLOW
