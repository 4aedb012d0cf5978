//go:build linux

package nftables

import (
	"context"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nlconn"
)

// socket is a connection to the netfilter subsystem of the network namespace in which it was opened.
type socket struct {
	*nlconn.Conn
	port uint32
	// moved is told the port of a socket that replaced another, before it writes.
	moved func(port uint32) error
}

// receiveBuffer has room for the notifications of what others write in a moment, and for the errors of a batch.
const receiveBuffer = 8 << 20

func openSocket() (*socket, error) {
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: receiveBuffer})
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: conn}
	s.port, err = conn.Port()
	return s, err
}

func (s *socket) close() error { return s.Close() }

// commit sends a batch and returns its outcome; see [nlconn.Conn.Batch]. last is the sequence number of the message that asks
// for an acknowledgement.
func (s *socket) commit(ctx context.Context, bufs [][]byte, last uint32) error {
	port, err := s.Port()
	if err == nil && port != s.port && s.moved != nil {
		err = s.moved(port)
	}
	if err != nil {
		return err
	}
	s.port = port
	return s.Batch(ctx, bufs, last)
}

// dump sends a request and calls f with the body of each message of the answer, without struct nfgenmsg.
// f must not keep the body. It returns nlconn.ErrInterrupted if the ruleset changed meanwhile.
func (s *socket) dump(ctx context.Context, request []byte, f func(body []byte) error) error {
	return s.Do(ctx, request, func(m nlconn.Message) error {
		if len(m.Body) < nfHeader {
			return unix.EBADMSG
		}
		return f(m.Body[nfHeader:])
	})
}

// ask is dump for an f that cannot fail.
func (s *socket) ask(ctx context.Context, request []byte, f func(body []byte)) error {
	return s.dump(ctx, request, func(body []byte) error { f(body); return nil })
}
