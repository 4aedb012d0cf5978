package ipvsfake

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	ipvswire "kube-proxy/internal/netlink/ipvs"
)

// Conn is a connection to the kernel, an [nlconn.Transport]. It is for one goroutine at a time.
type Conn struct {
	kernel *Kernel
	seq    uint32
	closed bool
}

// message is a request, taken apart.
type message struct {
	typ, flags uint16
	body       []byte
}

// cut takes the first message off b.
func cut(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, fmt.Errorf("a message of %d bytes", len(b))
	}
	n := int(order.Uint32(b))
	if n < unix.SizeofNlMsghdr || n > len(b) {
		return m, nil, fmt.Errorf("a message of %d bytes in %d", n, len(b))
	}
	return message{order.Uint16(b[4:]), order.Uint16(b[6:]), b[unix.SizeofNlMsghdr:n]}, b[min((n+3)&^3, len(b)):], nil
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

// Do is as [nlconn.Conn.Do].
func (c *Conn) Do(ctx context.Context, request []byte, f func(nlconn.Message) error) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	m, rest, err := cut(request)
	if err != nil || len(rest) > 0 {
		return fmt.Errorf("not one request: %w", errors.Join(err, unix.EINVAL))
	}
	c.seq++
	errno, lost := c.kernel.arrives(m)
	if lost {
		return fmt.Errorf("%w: nothing for a while: %w", nlconn.ErrNoAnswer, os.ErrDeadlineExceeded)
	}
	if errno != nil {
		return &nlconn.Error{Errno: errno.(unix.Errno), Seq: c.seq}
	}
	if m.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
		err = c.kernel.dump(ctx, m, c.told(m, f))
	} else {
		err = c.kernel.one(m, c.told(m, f))
	}
	if e, ok := err.(unix.Errno); ok {
		return &nlconn.Error{Errno: e, Seq: c.seq}
	}
	if err == errNothing {
		if m.flags&unix.NLM_F_ACK != 0 {
			return nil
		}
		return fmt.Errorf("%w: nothing for a while: %w", nlconn.ErrNoAnswer, os.ErrDeadlineExceeded)
	}
	return err
}

// errNothing says that a request without an acknowledgement has no answer.
var errNothing = errors.New("no answer")

// told hands an answer's body to f.
func (c *Conn) told(m message, f func(nlconn.Message) error) func(body []byte) error {
	if f == nil {
		return func([]byte) error { return nil }
	}
	flags := uint16(0)
	if m.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
		flags = unix.NLM_F_MULTI
	}
	return func(body []byte) error { return f(nlconn.Message{Type: m.typ, Flags: flags, Seq: c.seq, Body: body}) }
}

// Each is as [nlconn.Conn.Each].
func (c *Conn) Each(ctx context.Context, messages []byte, outcome func(i int, err error)) error {
	if err := c.usable(ctx); err != nil {
		return err
	}
	for i := 0; len(messages) > 0; i++ {
		m, rest, err := cut(messages)
		if err != nil {
			return fmt.Errorf("%w: %w", err, unix.EINVAL)
		}
		messages = rest
		c.seq++
		errno, lost := c.kernel.arrives(m)
		if errno == nil && !lost {
			errno = c.kernel.one(m, func([]byte) error { return nil })
			lost = m.flags&unix.NLM_F_ACK == 0 && (errno == nil || errno == errNothing)
		}
		e, refused := errno.(unix.Errno)
		switch {
		case lost:
			outcome(i, nlconn.ErrNoAnswer)
		case refused:
			outcome(i, &nlconn.Error{Errno: e, Seq: c.seq})
		default:
			outcome(i, nil)
		}
	}
	return nil
}

// arrives counts a message, and asks Before what becomes of it. Where the answer is lost, it is carried out here.
func (k *Kernel) arrives(m message) (err error, lost bool) {
	k.mu.Lock()
	k.messages++
	r := Request{N: k.messages}
	if m.typ == k.family {
		r.Command, r.Service, r.Destination = k.names(m)
	}
	before, ours := k.Before, m.typ == k.family
	k.mu.Unlock()
	if before == nil || !ours {
		return nil, false
	}
	switch err := before(r); {
	case err == nil:
		return nil, false
	case errors.Is(err, ErrLost):
		if m.flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
			k.one(m, func([]byte) error { return nil })
		}
		return nil, true
	default:
		var errno unix.Errno
		if !errors.As(err, &errno) {
			panic(fmt.Sprintf("Kernel.Before says %v, which is no unix.Errno", err))
		}
		return errno, false
	}
}

// names says what a message is of, as far as it can be read.
func (k *Kernel) names(m message) (cmd Command, id ipvswire.ServiceID, addr netip.AddrPort) {
	if len(m.body) < 4 {
		return
	}
	cmd = Command(m.body[0])
	attrs, err := parse(m.body[4:], cmdPolicy)
	if err != nil {
		return
	}
	at, _, err := k.serviceKey(attrs[attrService])
	if err != nil {
		return
	}
	id = at.id()
	if d, err := readDestination(attrs[attrDest], false); err == nil {
		if d.family == 0 {
			d.family = at.family
		}
		addr = d.addrPort()
	}
	return
}

// one carries out a request that is not a dump. The error is a unix.Errno, errNothing, or f's.
func (k *Kernel) one(m message, f func(body []byte) error) error {
	body, err := k.carryOut(m)
	if err != nil {
		return err
	}
	if body == nil {
		return errNothing
	}
	return f(body)
}

func (k *Kernel) carryOut(m message) (body []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.flags&unix.NLM_F_REQUEST == 0 || m.typ < unix.NLMSG_MIN_TYPE {
		return nil, nil
	}
	if m.typ == unix.GENL_ID_CTRL {
		return k.control(m.body)
	}
	cmd, err := k.admit(m)
	if err != nil {
		return nil, err
	}
	if m.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP || cmd == GetDest {
		return nil, unix.EOPNOTSUPP
	}
	attrs, err := parse(m.body[4:], cmdPolicy)
	if err != nil {
		return nil, err
	}
	switch cmd {
	case GetService:
		at, _, err := k.serviceKey(attrs[attrService])
		if err != nil {
			return nil, err
		}
		s := k.services.find(at)
		if s == nil {
			return nil, unix.ESRCH
		}
		return serviceAnswer(s), nil
	case GetConfig:
		return k.configAnswer(), nil
	case GetInfo:
		return infoAnswer(), nil
	}
	return nil, k.change(cmd, attrs)
}

// admit says which command of the family a message is, as generic netlink does before the family hears of it.
func (k *Kernel) admit(m message) (Command, error) {
	if m.typ != k.family || k.cfg.Absent {
		return 0, unix.ENOENT
	}
	if len(m.body) < 4 {
		return 0, unix.EINVAL
	}
	cmd := Command(m.body[0])
	switch cmd {
	case NewService, SetService, DelService, GetService, NewDest, SetDest, DelDest, GetDest, SetConfig, GetConfig, GetInfo, Zero, Flush:
	default: // the sync daemon too
		return 0, unix.EOPNOTSUPP
	}
	if k.cfg.Unprivileged {
		return 0, unix.EPERM
	}
	return cmd, nil
}

// control is the controller of generic netlink.
func (k *Kernel) control(body []byte) ([]byte, error) {
	if len(body) < 4 || body[0] != unix.CTRL_CMD_GETFAMILY {
		return nil, unix.EOPNOTSUPP
	}
	if cstring(nlconn.Attribute(body[4:], unix.CTRL_ATTR_FAMILY_NAME)) != "IPVS" || k.cfg.Absent {
		return nil, unix.ENOENT
	}
	return k.familyAnswer(), nil
}

// dump lists, part by part and by position, so that what is changed between two parts shifts the rest.
func (k *Kernel) dump(ctx context.Context, m message, f func(body []byte) error) error {
	k.mu.Lock()
	cmd, err := k.admit(m)
	k.mu.Unlock()
	if err != nil {
		return err
	}
	if cmd != GetService && cmd != GetDest {
		return unix.EOPNOTSUPP
	}
	var failed error
	for at := 0; ; {
		part := k.part(cmd, m.body[4:], at)
		if len(part) == 0 {
			return failed
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: %w", nlconn.ErrNoAnswer, err)
		}
		at += len(part)
		for _, body := range part {
			if failed == nil {
				failed = f(body)
			}
		}
	}
}

// part is what of a list goes in one part from a position on.
func (k *Kernel) part(cmd Command, request []byte, at int) (part [][]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	size := 0
	fits := func(body []byte) bool {
		size += unix.SizeofNlMsghdr + len(body)
		if size > k.cfg.PartSize && len(part) > 0 {
			return false
		}
		part = append(part, body)
		return true
	}
	if cmd == GetService {
		for s := range k.services.from(at) {
			if !fits(serviceAnswer(s)) {
				break
			}
		}
		return part
	}
	attrs, err := parse(request, cmdPolicy)
	if err != nil {
		return nil
	}
	id, _, err := k.serviceKey(attrs[attrService])
	if err != nil {
		return nil
	}
	s := k.services.find(id)
	if s == nil {
		return nil
	}
	for d := range s.all(at) {
		if !fits(destinationAnswer(d)) {
			break
		}
	}
	return part
}
