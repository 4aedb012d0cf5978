package relay

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// maxPortableSessions bounds the sessions: each has a goroutine with a buffer, 64 MB together.
const maxPortableSessions = 1024

// portableUDP is the engine of UDP on hosts other than Linux: a goroutine of package net for each
// socket. A listener at every address answers from that of the route to the client, so each address
// should have its own.
type portableUDP struct {
	relay *Relay
	work  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	table   *udpTable
	fronts  map[*udpFront]*portableFront
	tending *time.Timer // nil: there is no session
}

func newPortableUDP(r *Relay) *portableUDP {
	p := &portableUDP{relay: r, fronts: map[*udpFront]*portableFront{}}
	budget := newUDPBudget(min(OpenFiles(), udpFiles*maxPortableSessions), EphemeralPorts())
	p.table = newUDPTable(r.cfg.UDPIdle, budget, p.dial)
	return p
}

func (p *portableUDP) add(s *Stats) { p.table.count.add(&s.UDP) }

func (p *portableUDP) stop() {
	p.mu.Lock()
	p.stopped = true
	for _, f := range p.fronts {
		p.remove(f)
	}
	if p.tending != nil {
		p.tending.Stop()
	}
	p.mu.Unlock()
	p.work.Wait()
}

// portableFront is a listener.
type portableFront struct {
	*udpFront
	engine *portableUDP
	conn   *net.UDPConn
}

func (p *portableUDP) listen(owner *Listener, at Listening) (socket, error) {
	var conn *net.UDPConn
	if err := p.relay.ns.run(func() (err error) {
		conn, err = net.ListenUDP(udpNetwork(at.Addr.Addr()), net.UDPAddrFromAddrPort(at.Addr))
		return err
	}); err != nil {
		return nil, listenError(err)
	}
	if err := errors.Join(conn.SetReadBuffer(udpBuffer), conn.SetWriteBuffer(udpBuffer)); err != nil {
		conn.Close()
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		conn.Close()
		return nil, ErrClosed
	}
	f := &portableFront{newUDPFront(owner, unmap(conn.LocalAddr().(*net.UDPAddr).AddrPort())), p, conn}
	p.fronts[f.udpFront] = f
	p.work.Go(f.receive)
	return f, nil
}

func udpNetwork(a netip.Addr) string {
	if a.Is6() {
		return "udp6"
	}
	return "udp4"
}

func (f *portableFront) addr() netip.AddrPort { return f.at }

func (f *portableFront) close() {
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	f.engine.remove(f)
}

// remove ends a listener and its sessions. The engine's mu is held.
func (p *portableUDP) remove(f *portableFront) {
	if p.fronts[f.udpFront] == f {
		delete(p.fronts, f.udpFront)
		p.table.close(f.udpFront)
		f.conn.Close()
	}
}

// receive passes on what clients send.
func (f *portableFront) receive() {
	p := f.engine
	buf := make([]byte, datagramSize)
	for {
		n, from, err := f.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond) // a host out of memory is not asked all the time
			continue
		}
		p.mu.Lock()
		if p.fronts[f.udpFront] == f {
			p.table.forward(f.udpFront, udpKey{unmap(from), f.at.Addr()}, buf[:n], 0, time.Now())
			p.tendLater()
		}
		p.mu.Unlock()
	}
}

// portableSession is the socket of a session.
type portableSession struct{ conn *net.UDPConn }

func (s portableSession) send(datagram []byte, _ int) error {
	_, err := s.conn.Write(datagram)
	return err
}

func (s portableSession) close() { s.conn.Close() }

// dial gives a session its socket. The mu is held.
func (p *portableUDP) dial(s *udpSession) error {
	var conn *net.UDPConn
	if err := p.relay.ns.run(func() (err error) {
		conn, err = net.DialUDP(udpNetwork(s.backend.Addr()), nil, net.UDPAddrFromAddrPort(s.backend))
		return err
	}); err != nil {
		return err
	}
	s.socket = portableSession{conn}
	via := p.fronts[s.front].conn
	p.work.Go(func() { p.reply(s, conn, via) })
	return nil
}

// reply passes on what a backend sends, until the session ends.
func (p *portableUDP) reply(s *udpSession, from, via *net.UDPConn) {
	buf := make([]byte, datagramSize)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		p.mu.Lock()
		over := s.front.sessions[s.key] != s
		switch {
		case over:
		case err != nil:
			s.lost = true
		default:
			over = !p.table.answered(s, time.Now())
		}
		p.mu.Unlock()
		switch {
		case over:
			return
		case err != nil:
			time.Sleep(time.Millisecond)
			continue
		}
		if _, err := via.WriteToUDPAddrPort(buf[:n], s.key.client); err != nil {
			p.table.count.sendFailed.Add(1)
			continue
		}
		p.table.count.toClients.Add(1)
		p.table.count.toClientBytes.Add(uint64(n))
	}
}

// tendLater has idle sessions end in time. The mu is held.
func (p *portableUDP) tendLater() {
	if p.tending == nil && p.table.count.open.Load() > 0 {
		p.tending = time.AfterFunc(p.table.granule(), p.tend)
	}
}

func (p *portableUDP) tend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tending = nil
	if p.table.expire(time.Now()) && !p.stopped {
		p.tendLater()
	}
}
