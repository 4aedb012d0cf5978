package relay

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// maxPortableSockets bounds the sockets to backends: each has a goroutine with a buffer, 33 MB together.
const maxPortableSockets = 512

// portableUDP is the engine of UDP on hosts that are not Linux: a goroutine for each socket, datagrams one by one, and what
// package net does. It hears of no backend whose port is closed, only of those that the host itself has no way to. A listener
// at every address answers from the one that the route to the client has, so listeners should have their own.
type portableUDP struct {
	relay  *Relay
	shared *udpShared
	begun  time.Time
	work   sync.WaitGroup

	mu       sync.Mutex
	stopped  bool
	sessions *udpSessions
	fronts   map[uint32]*portableFront
	pools    [2][]*net.UDPConn
	tending  *time.Timer // nil: nothing will be idle
}

func newPortableUDP(r *Relay) *portableUDP {
	shared := newUDPShared(r.cfg.UDPIdle, 1, OpenFiles(), 8*maxPortableSockets)
	p := &portableUDP{relay: r, shared: shared, begun: time.Now(), fronts: map[uint32]*portableFront{}}
	p.sessions = newUDPSessions(shared, p.openBack)
	return p
}

func (p *portableUDP) add(s *Stats) {
	s.UDP.add(p.sessions.count.read())
	s.UDP.Open += p.shared.sessions.Load()
	s.UDP.Sockets += p.shared.sockets.Load()
}

func (p *portableUDP) now() time.Duration { return time.Since(p.begun) }

// portableFront is a listener.
type portableFront struct {
	udpFront
	engine *portableUDP
	conn   *net.UDPConn
}

func (p *portableUDP) listen(owner *Listener, at Listening) (socket, error) {
	f := &portableFront{engine: p}
	var err error
	if nsErr := p.relay.ns.run(func() { f.conn, err = openPortableUDP(at.Addr) }); nsErr != nil {
		return nil, nsErr
	}
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		f.conn.Close()
		return nil, ErrClosed
	}
	f.udpFront = udpFront{owner: owner, id: p.sessions.addListener(owner.group), at: unmap(f.conn.LocalAddr().(*net.UDPAddr).AddrPort())}
	p.fronts[f.id] = f
	p.work.Go(f.receive)
	return f, nil
}

// openPortableUDP makes a socket.
func openPortableUDP(at netip.AddrPort) (*net.UDPConn, error) {
	conn, err := net.ListenUDP(udpNetwork(isSix(at.Addr())), net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, listenError(err)
	}
	if err := errors.Join(conn.SetReadBuffer(udpBuffer), conn.SetWriteBuffer(udpBuffer)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

func udpNetwork(six bool) string {
	if six {
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

func (f *portableFront) leave(gone []netip.AddrPort, grace time.Duration) {
	if grace < 0 {
		return
	}
	f.engine.mu.Lock()
	defer f.engine.mu.Unlock()
	f.engine.sessions.leave(f.id, gone, f.engine.now())
}

// remove ends a listener and its sessions. The engine's mu is held.
func (p *portableUDP) remove(f *portableFront) {
	if p.fronts[f.id] == f {
		delete(p.fronts, f.id)
		p.sessions.removeListener(f.id, p.now())
		f.conn.Close()
	}
}

func (p *portableUDP) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.fronts {
		p.remove(f)
	}
}

func (p *portableUDP) stop() {
	p.end()
	p.mu.Lock()
	p.stopped = true
	for six, pool := range p.pools {
		for _, c := range pool {
			c.Close()
		}
		p.sessions.dropSockets(six == 1, len(pool))
		p.pools[six] = nil
	}
	if p.tending != nil {
		p.tending.Stop()
	}
	p.mu.Unlock()
	p.work.Wait()
}

// openBack makes a socket to backends. The engine's mu is held.
func (p *portableUDP) openBack(six bool) error {
	var conn *net.UDPConn
	var err error
	if nsErr := p.relay.ns.run(func() { conn, err = openPortableUDP(anyPort(six)) }); nsErr != nil {
		return nsErr
	}
	if err != nil {
		return err
	}
	pool := &p.pools[family(six)]
	number := uint32(len(*pool))
	*pool = append(*pool, conn)
	p.work.Go(func() { p.receiveReplies(conn, number) })
	return nil
}

// each calls fn with what comes to a socket until that is closed.
func each(conn *net.UDPConn, fn func(datagram []byte, from netip.AddrPort)) {
	buf := make([]byte, messageSize)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case err == nil:
			fn(buf[:n], withIndex(unmap(from)))
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(time.Millisecond) // a host out of memory is not asked all the time
		}
	}
}

// withIndex has the number of an interface as the zone of a link-local address.
func withIndex(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Zone() == "" {
		return a
	}
	if link, err := net.InterfaceByName(a.Addr().Zone()); err == nil {
		return netip.AddrPortFrom(a.Addr().WithZone(strconv.Itoa(link.Index)), a.Port())
	}
	return a
}

// receive leads what clients send to backends.
func (f *portableFront) receive() {
	p, local := f.engine, f.at.Addr().As16()
	each(f.conn, func(datagram []byte, from netip.AddrPort) {
		k := udpKey{client: packAddr(from), local: local}
		var tried []netip.AddrPort
		for range maxAttempts {
			via, to := p.towards(f, &k, tried)
			if via == nil {
				return
			}
			_, err := via.WriteToUDPAddrPort(datagram, to)
			if err == nil {
				p.sessions.count.toBackends.Add(1)
				p.sessions.count.toBackendBytes.Add(uint64(len(datagram)))
				return
			}
			if tooLong(err) {
				break
			}
			f.owner.dialled(f.client(&k), to, err)
			tried = append(tried, to)
		}
		p.sessions.count.sendFailed.Add(1)
	})
}

// towards returns the socket and the backend of a client's session, which is to be none of those that were tried. nil: the
// datagram is to be dropped.
func (p *portableUDP) towards(f *portableFront, k *udpKey, tried []netip.AddrPort) (*net.UDPConn, netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fronts[f.id] != f {
		return nil, netip.AddrPort{}
	}
	k.listener = f.id
	now := p.now()
	var id uint32
	if len(tried) == 0 {
		id = p.sessions.session(&f.udpFront, k, now)
	} else if id = p.sessions.clients[*k]; id != 0 {
		id = p.sessions.elsewhere(&f.udpFront, id, tried, now)
	}
	p.tendLater()
	if id == 0 {
		return nil, netip.AddrPort{}
	}
	s := p.sessions.at(id)
	b := &p.sessions.backends[s.backend]
	return p.pools[family(b.six)][s.socket], b.addr.addrPort()
}

// receiveReplies leads what backends send to clients.
func (p *portableUDP) receiveReplies(conn *net.UDPConn, number uint32) {
	each(conn, func(datagram []byte, from netip.AddrPort) {
		p.mu.Lock()
		if p.stopped {
			p.mu.Unlock()
			return
		}
		addr := packAddr(from)
		id := p.sessions.fromBackend(func(id uint32) *udpFront { return &p.fronts[id].udpFront }, number, &addr, p.now())
		if id == 0 {
			p.mu.Unlock()
			return
		}
		k := p.sessions.at(id).key
		via := p.fronts[k.listener].conn
		p.mu.Unlock()
		if _, err := via.WriteToUDPAddrPort(datagram, k.client.addrPort()); err != nil {
			p.sessions.count.sendFailed.Add(1)
			return
		}
		p.sessions.count.toClients.Add(1)
		p.sessions.count.toClientBytes.Add(uint64(len(datagram)))
	})
}

// tendLater has idle sessions end in time. The mu is held.
func (p *portableUDP) tendLater() {
	if p.tending == nil && !p.stopped {
		p.tending = time.AfterFunc(p.sessions.granule, p.tend)
	}
}

func (p *portableUDP) tend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped { // the sockets of what would be freed are gone
		p.tending = nil
		return
	}
	now := p.now()
	next := p.sessions.expire(now)
	if next == 0 {
		p.tending = nil
		return
	}
	p.tending.Reset(max(next-now, time.Millisecond))
}
