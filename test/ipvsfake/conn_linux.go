package ipvsfake

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipvs"
)

// Conn is a connection to the kernel, an [netlink.Transport]. It is for one goroutine at a time.
type Conn struct {
	kernel *Kernel
	closed bool
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.closed = true
	return nil
}

func (c *Conn) usable(ctx context.Context) error {
	if c.closed {
		return os.ErrClosed
	}
	return ctx.Err()
}

// Do is as [netlink.Conn.Do].
func (c *Conn) Do(ctx context.Context, request []byte, f func(netlink.Message) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	m, _, err := netlink.Cut(request)
	if err != nil {
		return err
	}
	bodies, err := c.kernel.take(m)
	for _, body := range bodies {
		if err == nil && f != nil {
			err = f(netlink.Message{Type: m.Type, Body: body})
		}
	}
	return err
}

// Each is as [netlink.Conn.Each].
func (c *Conn) Each(ctx context.Context, messages []byte, outcome func(i int, err error)) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	for i := 0; len(messages) > 0; i++ {
		m, rest, err := netlink.Cut(messages)
		if err != nil {
			return err
		}
		messages = rest
		_, err = c.kernel.take(m)
		outcome(i, err)
	}
	return nil
}

// take carries out a message, unless Before returns an error.
func (k *Kernel) take(m netlink.Message) (bodies [][]byte, err error) {
	k.mu.Lock()
	k.messages++
	r, before := Request{N: k.messages}, k.Before
	if m.Type == k.family {
		r.Command, r.Service, r.Destination = names(m)
	} else {
		before = nil
	}
	k.mu.Unlock()
	if before != nil {
		err = before(r)
	}
	lost := errors.Is(err, ErrLost)
	if err == nil || lost {
		k.mu.Lock()
		bodies, err = k.carryOut(m)
		k.mu.Unlock()
	}
	var errno unix.Errno
	switch {
	case lost:
		return nil, fmt.Errorf("%w: nothing for a while: %w", netlink.ErrNoAnswer, os.ErrDeadlineExceeded)
	case errors.As(err, &errno):
		return nil, &netlink.Error{Errno: errno}
	case err != nil:
		panic(fmt.Sprintf("Kernel.Before says %v, which is no unix.Errno", err))
	}
	return bodies, nil
}

// names returns the readable part of a message's object.
func names(m netlink.Message) (cmd Command, id ipvs.ServiceID, addr netip.AddrPort) {
	cmd = Command(m.Body[0])
	attrs, err := parse(m.Body[4:], cmdLengths)
	if err != nil {
		return
	}
	at, _, err := serviceKey(attrs[attrService])
	if err != nil {
		return
	}
	id = at.id()
	if d, err := readDestination(attrs[attrDest], false); err == nil {
		addr = d.addrPort()
	}
	return
}

// carryOut carries out a message, and returns the answers.
func (k *Kernel) carryOut(m netlink.Message) (bodies [][]byte, err error) {
	if m.Type == unix.GENL_ID_CTRL {
		if netlink.CStr(netlink.Attribute(m.Body[4:], unix.CTRL_ATTR_FAMILY_NAME)) != "IPVS" || k.cfg.Absent {
			return nil, unix.ENOENT
		}
		return [][]byte{k.familyAnswer()}, nil
	}
	switch {
	case m.Type != k.family || k.cfg.Absent:
		return nil, unix.ENOENT
	case k.cfg.Unprivileged:
		return nil, unix.EPERM
	}
	attrs, err := parse(m.Body[4:], cmdLengths)
	if err != nil {
		return nil, err
	}
	switch cmd := Command(m.Body[0]); cmd {
	case GetService:
		if m.Flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
			for _, s := range k.listed() {
				bodies = append(bodies, serviceAnswer(s))
			}
			return bodies, nil
		}
		at, _, err := serviceKey(attrs[attrService])
		if err != nil {
			return nil, err
		}
		s := k.services[at]
		if s == nil {
			return nil, unix.ESRCH
		}
		return [][]byte{serviceAnswer(s)}, nil
	case GetDest:
		at, _, err := serviceKey(attrs[attrService])
		if s := k.services[at]; err == nil && s != nil {
			for _, d := range s.listed() {
				bodies = append(bodies, destinationAnswer(d))
			}
		}
		return bodies, nil // of a service that is not there, too
	case GetConfig:
		return [][]byte{k.configAnswer()}, nil
	case GetInfo:
		return nil, nil // the caller only waits for an acknowledgement
	default:
		return nil, k.change(cmd, attrs)
	}
}
