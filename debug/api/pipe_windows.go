package api

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/Microsoft/go-winio"
)

// forAdministrators is the access to the pipe: all of it for administrators and the system, none for others, and nothing inherited.
const forAdministrators = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"

// socket is a named pipe that this process listens at.
type socket struct {
	net.Listener
	path  string
	broke atomic.Bool
}

// openSocket listens at path, for administrators and the system alone; other machines are refused. It fails where a process has a pipe of
// this name: the pipe of one that was killed has gone with it.
func openSocket(path string) (*socket, error) {
	l, err := winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: forAdministrators})
	if err != nil {
		return nil, fmt.Errorf("listen at a named pipe (another process may own it): %w", err)
	}
	return &socket{Listener: l, path: path}, nil
}

// dial connects to the process that listens at path. That process cannot act in the name of the user who asks.
func dial(ctx context.Context, path string) (net.Conn, error) {
	return winio.DialPipeContext(ctx, path)
}

// ours reports whether the pipe still answers.
func (s *socket) ours() bool { return !s.broke.Load() }

// remove ends the listener: the path is the pipe itself, and the next process can have it.
func (s *socket) remove() { _ = s.Close() } // it is gone whatever it says

func (s *socket) close() { s.remove() }
