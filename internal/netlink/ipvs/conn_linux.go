package ipvs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// ErrNoIPVS is wrapped by errors of a kernel without IPVS and its module.
var ErrNoIPVS = errors.New("the kernel has no IPVS (CONFIG_IP_VS, the module ip_vs)")

const (
	// room is the size of the receive buffer. The kernel doubles it, and an answer takes up to 2
	// KiB. Every process may have this size, unless net.core.rmem_max was lowered.
	room = 208 << 10
	// piece is the number of operations in one system call.
	piece = 192
)

// Conn is a connection to IPVS in one network namespace. Only one goroutine may use it at a time.
type Conn struct {
	kernel netlink.Transport
	family uint16 // the kernel's number of the IPVS family
	bulk   netlink.Bulk

	// The state of a call of Do.
	ops      []Op
	failures netlink.Failures
}

// Open connects to IPVS in the calling thread's network namespace. The kernel loads a module if it
// has one. The error wraps [ErrNoIPVS] without IPVS, and unix.EPERM without CAP_NET_ADMIN.
func Open() (*Conn, error) {
	kernel, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_GENERIC, ReceiveBuffer: room})
	if err != nil {
		return nil, fmt.Errorf("connect to IPVS: %w", err)
	}
	c, err := New(context.Background(), kernel)
	if err != nil {
		kernel.Close()
		return nil, err
	}
	return c, nil
}

// New returns a connection over a transport, which Close closes; if New fails, the caller must
// close it.
func New(ctx context.Context, kernel netlink.Transport) (*Conn, error) {
	c := &Conn{kernel: kernel, bulk: netlink.Bulk{Piece: piece}}
	if err := c.resolve(ctx); err != nil {
		return nil, fmt.Errorf("connect to IPVS: %w", err)
	}
	// Reports errors now that every operation would have.
	if err := c.ask(ctx, cmdGetInfo, unix.NLM_F_ACK, nil, nil); err != nil {
		return nil, fmt.Errorf("connect to IPVS: %w", err)
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.kernel.Close() }

// Counters returns the totals of sent messages.
func (c *Conn) Counters() netlink.Counters { return c.bulk.Counters }

// Do carries out operations in order. It calls failed, if not nil, for each that the kernel
// refused, that was not sent, or whose outcome is unknown (the error wraps [netlink.ErrNoAnswer]),
// in no order; all others are done. It returns the first such error with their number, or nil.
// Errors name the operation, and wrap the kernel's.
//
// Nothing interrupts a system call; an ended context prevents the next one.
func (c *Conn) Do(ctx context.Context, ops []Op, failed func(i int, err error)) error {
	c.ops, c.failures = ops, netlink.Failures{Failed: failed}
	c.bulk.Do(ctx, c.kernel, len(ops), (*operations)(c))
	err := c.failures.Err(len(ops))
	c.ops, c.failures = nil, netlink.Failures{}
	return err
}

// operations are those of the present call of Do.
type operations Conn

// Append implements [netlink.Operations].
func (c *operations) Append(e *netlink.Encoder, i int) error {
	appendOp(e, c.family, &c.ops[i])
	return nil
}

// Done implements [netlink.Operations].
func (c *operations) Done(i int, err error) {
	if err != nil {
		c.failures.Add(i, fmt.Errorf("%v: %w", c.ops[i], err))
	}
}

// ask sends a request with the attributes that build appends, and calls f with the body of each
// answer.
func (c *Conn) ask(ctx context.Context, cmd uint8, flags uint16, build func(*netlink.Encoder),
	f func(body []byte) error) error {
	e := &c.bulk.Out
	e.B = e.B[:0]
	at := begin(e, c.family, flags, cmd)
	if build != nil {
		build(e)
	}
	e.EndMessage(at)
	return c.send(ctx, c.family, f)
}

// send sends the request, and calls f with the body of each answer of a family.
func (c *Conn) send(ctx context.Context, family uint16, f func(body []byte) error) error {
	c.bulk.Sent(1, len(c.bulk.Out.B))
	return c.kernel.Do(ctx, c.bulk.Out.B, func(m netlink.Message) error {
		if m.Type != family || f == nil {
			return nil
		}
		return f(m.Body)
	})
}

// resolve queries the number of the family, which changes when the module is loaded again. Without
// virtual services it can be unloaded.
func (c *Conn) resolve(ctx context.Context) error {
	e := &c.bulk.Out
	e.B = e.B[:0]
	at := e.Begin(unix.GENL_ID_CTRL, 0, 0)
	e.B = append(e.B, unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
	e.Str(unix.CTRL_ATTR_FAMILY_NAME, familyName)
	e.EndMessage(at)
	var family uint16
	err := c.send(ctx, unix.GENL_ID_CTRL, func(body []byte) error {
		if attrs, ok := attributes(body, unix.CTRL_CMD_NEWFAMILY); ok {
			family = netlink.Native16(netlink.Attribute(attrs, unix.CTRL_ATTR_FAMILY_ID))
		}
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return ErrNoIPVS
	case err != nil:
		return fmt.Errorf("query the generic netlink family %s: %w", familyName, err)
	case family == 0:
		return fmt.Errorf("query the generic netlink family %s: %w: it has no number", familyName, unix.EBADMSG)
	}
	c.family = family
	return nil
}

// Services calls f with each virtual service of the network namespace, of both families, in no
// order; the package comment says what a list may lack. It returns an error of f. f must not use
// the connection.
func (c *Conn) Services(ctx context.Context, f func(ServiceState) error) error {
	err := c.resolve(ctx)
	if err == nil {
		err = c.ask(ctx, cmdGetService, unix.NLM_F_DUMP, nil, func(body []byte) error {
			s, err := parseService(body)
			if err != nil {
				return err
			}
			return f(s)
		})
	}
	if err != nil {
		return fmt.Errorf("list virtual servers: %w", err)
	}
	return nil
}

// Service returns one virtual service. The error wraps unix.ESRCH if it does not exist.
func (c *Conn) Service(ctx context.Context, id ServiceID) (ServiceState, error) {
	var s ServiceState
	found := false
	err := c.ask(ctx, cmdGetService, unix.NLM_F_ACK, naming(id), func(body []byte) (err error) {
		s, err = parseService(body)
		found = err == nil
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: an answer without it", unix.EBADMSG)
	}
	if err != nil {
		return ServiceState{}, fmt.Errorf("look at virtual server %s: %w", id, err)
	}
	return s, nil
}

// naming appends the attributes that name a service.
func naming(id ServiceID) func(*netlink.Encoder) {
	return func(e *netlink.Encoder) { appendService(e, &Service{ServiceID: id}, false) }
}

// Destinations lists the destinations of a service, in no order; none of a missing service.
func (c *Conn) Destinations(ctx context.Context, id ServiceID) (all []DestinationState, err error) {
	err = c.ask(ctx, cmdGetDest, unix.NLM_F_DUMP, naming(id), func(body []byte) error {
		d, err := parseDestination(body)
		all = append(all, d)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list real servers of virtual server %s: %w", id, err)
	}
	return all, nil
}

// Timeouts returns the timeouts of connections.
func (c *Conn) Timeouts(ctx context.Context) (Timeouts, error) {
	var t Timeouts
	err := c.ask(ctx, cmdGetConfig, unix.NLM_F_ACK, nil, func(body []byte) error {
		attrs, ok := attributes(body, cmdSetConfig)
		if !ok {
			return unix.EBADMSG
		}
		seconds := func(attr uint16) time.Duration {
			return time.Duration(netlink.Native32(netlink.Attribute(attrs, attr))) * time.Second
		}
		t = Timeouts{TCP: seconds(attrTimeoutTCP), TCPFin: seconds(attrTimeoutTCPFin), UDP: seconds(attrTimeoutUDP)}
		return nil
	})
	if err != nil {
		return Timeouts{}, fmt.Errorf("read the timeouts of IPVS: %w", err)
	}
	return t, nil
}

// SetTimeouts sets the timeouts of connections, in whole seconds, for later packets; 0 keeps a
// timeout.
func (c *Conn) SetTimeouts(ctx context.Context, t Timeouts) error {
	err := c.ask(ctx, cmdSetConfig, unix.NLM_F_ACK, func(e *netlink.Encoder) {
		for i, timeout := range []time.Duration{t.TCP, t.TCPFin, t.UDP} {
			if timeout != 0 {
				e.Native32(attrTimeoutTCP+uint16(i), uint32(timeout/time.Second))
			}
		}
	}, nil)
	if err != nil {
		return fmt.Errorf("set the timeouts of IPVS to %+v: %w", t, err)
	}
	return nil
}
