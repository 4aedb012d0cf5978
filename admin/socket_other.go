//go:build !linux

package admin

import (
	"errors"
	"net"
	"sync/atomic"
)

// socket is nothing here.
type socket struct {
	net.Listener
	path  string
	broke atomic.Bool
}

// openSocket says that there is none: configuration asks for none here.
func openSocket(string) (*socket, error) {
	return nil, errors.New("there are admin sockets on Linux only")
}

func (s *socket) ours() bool { return false }
func (s *socket) remove()    {}
func (s *socket) close()     {}
