package api

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/Microsoft/go-winio"
)

// forAdministrators is the access to the pipe: full access for administrators and the system, no
// access for others, and nothing inherited.
const forAdministrators = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"

// socket is a named pipe that this process listens at.
type socket struct {
	net.Listener
	path  string
	broke atomic.Bool
}

// openSocket listens at path, for administrators and the system only, and not for other machines.
// It fails if a process has a pipe of this name; the pipe of a killed process no longer exists.
func openSocket(path string) (*socket, error) {
	l, err := winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: forAdministrators})
	if err != nil {
		return nil, fmt.Errorf("listen at a named pipe (another process may own it): %w", err)
	}
	return &socket{Listener: l, path: path}, nil
}

// dial connects to the process that listens at path. That process cannot impersonate the user who
// connects.
func dial(ctx context.Context, path string) (net.Conn, error) {
	return winio.DialPipeContext(ctx, path)
}

// ours reports whether the pipe still answers.
func (s *socket) ours() bool { return !s.broke.Load() }

// remove ends the listener: the path is the pipe itself, and the next process can have it.
func (s *socket) remove() { _ = s.Close() } // it is gone in any case

func (s *socket) close() { s.remove() }
