package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kube-proxy/lb"
)

// portable is the engine of hosts other than Linux: two goroutines of package net for each
// connection of TCP.
type portable struct {
	relay *Relay
	fds   *Budget
	counters

	mu    sync.Mutex
	conns map[*portableConn]struct{}
	work  sync.WaitGroup
}

func newPortable(r *Relay) *portable {
	return &portable{relay: r, fds: r.cfg.Descriptors, conns: map[*portableConn]struct{}{}}
}

func (p *portable) stats() (tcp, sctp Connections) { return p.read(), sctp }

func (p *portable) stop() {
	p.end()
	p.work.Wait()
}

func (p *portable) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.reset()
	}
}

func (p *portable) listen(l *Listener, at Listening) (socket, netip.AddrPort, error) {
	if at.Proto != lb.TCP {
		return nil, at.Addr, fmt.Errorf("protocol %v: %w", at.Proto, errors.ErrUnsupported)
	}
	var ln net.Listener
	if err := p.relay.ns.run(func() (err error) {
		ln, err = (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), network("tcp", at.Addr.Addr()),
			at.Addr.String())
		return err
	}); err != nil {
		return nil, at.Addr, listenError(err)
	}
	s := &portableSocket{engine: p, owner: l, ln: ln.(*net.TCPListener), share: Share{group: &l.group.descriptors}}
	p.work.Go(s.accept)
	return s, unmap(ln.Addr().(*net.TCPAddr).AddrPort()), nil
}

// network names a network of package net.
func network(protocol string, a netip.Addr) string {
	if a.Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}

// portableSocket is one listener.
type portableSocket struct {
	engine *portable
	owner  *Listener
	ln     *net.TCPListener
	share  Share
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func (s *portableSocket) close() { s.ln.Close() }

// accept takes clients until the listener is closed.
func (s *portableSocket) accept() {
	p := s.engine
	for {
		for !p.fds.Take(&s.share, 2) {
			p.outOfDescriptors.Add(1)
			time.Sleep(acceptPause)
		}
		client, err := s.ln.AcceptTCP()
		if err != nil {
			p.fds.Give(&s.share, 2)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			p.outOfDescriptors.Add(1)
			time.Sleep(acceptPause)
			continue
		}
		p.accepted.Add(1)
		p.open.Add(1)
		ctx, cancel := context.WithCancel(context.Background())
		c := &portableConn{from: s, client: client, ctx: ctx, cancel: cancel}
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.work.Go(c.serve)
	}
}

// portableConn is one client, and its backend once that is reached. The engine's mu guards server.
type portableConn struct {
	from   *portableSocket
	client *net.TCPConn
	ctx    context.Context // of all attempts to reach a backend
	cancel context.CancelFunc

	backend netip.AddrPort // of the attempt, or that was reached
	ports   *clientPorts
	server  *net.TCPConn
}

// reset ends the connection at once. The engine's mu is held.
func (c *portableConn) reset() {
	c.cancel()
	for _, conn := range []*net.TCPConn{c.client, c.server} {
		if conn != nil {
			conn.SetLinger(0)
			conn.Close()
		}
	}
}

// outlive resets the connection when its backend has not served for the grace.
func (c *portableConn) outlive(grace time.Duration) {
	tick := time.NewTicker(inspectEvery(grace))
	defer tick.Stop()
	for served := time.Now(); time.Since(served) < grace; {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		if c.from.owner.balancer().Serves(c.backend) {
			served = time.Now()
		}
	}
	c.from.engine.mu.Lock()
	defer c.from.engine.mu.Unlock()
	c.reset()
}

// serve reaches a backend, and moves bytes until both sides have ended.
func (c *portableConn) serve() {
	p := c.from.engine
	if c.dial() {
		if grace := p.relay.cfg.Grace; grace > 0 {
			p.work.Go(func() { c.outlive(grace) })
		}
		var toClient sync.WaitGroup
		toClient.Go(func() { c.move(c.client, c.server, &p.toClients) })
		c.move(c.server, c.client, &p.toBackends)
		toClient.Wait()
	} else {
		p.refused.Add(1)
	}
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	c.cancel()
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
	p.relay.ports.give(c.ports)
	p.open.Add(-1)
	p.fds.Give(&c.from.share, 2)
}

// move sends dst everything from src, and its end. It passes on a reset.
func (c *portableConn) move(dst, src *net.TCPConn, count *atomic.Uint64) {
	n, err := io.Copy(dst, src)
	count.Add(uint64(n))
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		p := c.from.engine
		p.mu.Lock()
		c.reset()
		p.mu.Unlock()
	}
}

// dial reaches a backend for the client, and reports whether it has.
func (c *portableConn) dial() bool {
	p, cfg := c.from.engine, c.from.engine.relay.cfg
	who := Client{Addr: unmap(c.client.RemoteAddr().(*net.TCPAddr).AddrPort()),
		Local: unmap(c.client.LocalAddr().(*net.TCPAddr).AddrPort())}
	var tried []netip.AddrPort
	for until := time.Now().Add(cfg.DialTotal); len(tried) < maxAttempts && c.ctx.Err() == nil &&
		time.Now().Before(until); {
		backend := c.from.owner.balancer().Pick(who, tried)
		if !backend.IsValid() {
			break
		}
		if len(tried) == 1 {
			p.retried.Add(1)
		}
		err := c.attempt(who, backend)
		// a refusal has another error: this came after the handshake
		if reset := errors.Is(err, syscall.ECONNRESET); reset || err == nil {
			c.from.owner.balancer().Dialled(who, backend, nil)
			if reset {
				break
			}
			return true
		}
		if c.ctx.Err() == nil { // else the client has gone, or the relay ends
			p.dialsFailed.Add(1)
			c.from.owner.balancer().Dialled(who, backend, err)
		}
		tried = append(tried, backend)
	}
	c.client.SetLinger(0)
	return false
}

// attempt tries to reach a backend.
func (c *portableConn) attempt(who Client, backend netip.AddrPort) error {
	p, cfg := c.from.engine, c.from.engine.relay.cfg
	c.backend = backend
	p.relay.ports.give(c.ports)
	c.ports = p.relay.ports.take(lb.TCP, backend, who.Addr.Addr())
	if c.ports == nil {
		return errPorts
	}
	d := net.Dialer{Timeout: cfg.DialTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: cfg.KeepAlive, Interval: cfg.KeepAlive / keepAliveProbes, Count: keepAliveProbes}}
	c.client.SetKeepAliveConfig(d.KeepAliveConfig)
	var conn net.Conn
	if err := p.relay.ns.run(func() (err error) {
		conn, err = d.DialContext(c.ctx, "tcp", backend.String())
		return err
	}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.ctx.Err() != nil { // the client or the relay has ended meanwhile
		conn.Close()
		return c.ctx.Err()
	}
	c.server = conn.(*net.TCPConn)
	return nil
}
