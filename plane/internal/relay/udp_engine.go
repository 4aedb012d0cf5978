package relay

import (
	"net/netip"
	"sync"
	"time"
)

// udpShards is how many shards an engine has. A flood of one costs the others nothing but the
// processor.
const udpShards = 64

// udpEngine serves UDP: each socket has a goroutine that reads it, which forwards what it has read.
type udpEngine struct {
	relay  *Relay
	shards [udpShards]udpShard
	work   sync.WaitGroup
}

// udpShard is the listeners of some groups, and their sessions.
type udpShard struct {
	engine *udpEngine

	mu      sync.Mutex
	table   *udpTable
	tending *time.Timer // nil: there is no session
}

func newUDP(r *Relay, budget *Budget) *udpEngine {
	e := &udpEngine{relay: r}
	for i := range e.shards {
		s := &e.shards[i]
		s.engine, s.table = e, newUDPTable(r.cfg.UDPIdle, budget, s.dial)
	}
	return e
}

func (e *udpEngine) add(s *Stats) {
	for i := range e.shards {
		e.shards[i].table.count.add(&s.UDP)
	}
}

// stop waits for the end of all goroutines, whose listeners are closed.
func (e *udpEngine) stop() { e.work.Wait() }

func (e *udpEngine) listen(owner *Listener, at Listening) (socket, error) {
	var socket *udpSocket
	if err := e.relay.ns.run(func() (err error) {
		socket, err = newFrontSocket(at.Addr)
		return err
	}); err != nil {
		return nil, listenError(err)
	}
	f := newUDPFront(owner, socket.addr())
	f.shard, f.socket = &e.shards[owner.group.shard%udpShards], socket
	e.work.Go(f.receive)
	return f, nil
}

func (f *udpFront) addr() netip.AddrPort { return f.at }

// close ends the sessions too: without the socket there is no way back to their clients.
func (f *udpFront) close() {
	f.shard.mu.Lock()
	defer f.shard.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.shard.table.close(f)
		f.socket.close()
	}
}

// buffers are for a datagram each. A socket needs one only while it has something to read.
var buffers = sync.Pool{New: func() any { return new([datagramSize]byte) }}

// datagram is one that was read. What is known of its client the listeners' sockets alone tell.
type datagram struct {
	buf    *[datagramSize]byte
	n      int
	client netip.AddrPort
	received
}

func (d *datagram) bytes() []byte { return d.buf[:d.n] }

func (d *datagram) free() { buffers.Put(d.buf) }

// received is what the host reports about a datagram of a client.
type received struct {
	local   netip.Addr // to which address of the host
	unicast bool
	hops    int // as many routers may pass it on; 0 if that is not known
}

// receive forwards what clients send.
func (f *udpFront) receive() {
	for {
		d, err := f.socket.fromClient()
		switch {
		case isClosed(err):
			return
		case err != nil:
			time.Sleep(time.Millisecond) // a host out of memory is not asked all the time
		default:
			f.shard.forward(f, &d)
			d.free()
		}
	}
}

func (s *udpShard) forward(f *udpFront, d *datagram) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.closed:
	case !d.unicast || d.hops == 1:
		// The relay is a router among others: two relays whose backends are each other would pass a
		// datagram on forever.
		s.table.count.malformed.Add(1)
	default:
		s.table.forward(f, udpKey{d.client, d.local}, d.bytes(), max(d.hops-1, 0), time.Now())
		s.tendLater()
	}
}

// dial gives a session its socket. The mu is held.
func (s *udpShard) dial(of *udpSession) error {
	e := s.engine
	var socket *udpSocket
	if err := e.relay.ns.run(func() (err error) {
		socket, err = newBackendSocket(of, e.relay.cfg.Mark)
		return err
	}); err != nil {
		return err
	}
	of.socket = socket
	e.work.Go(func() { s.reply(of, socket) })
	return nil
}

// reply passes on what a backend sends, until the session ends.
func (s *udpShard) reply(of *udpSession, from *udpSocket) {
	for {
		d, err := from.fromBackend()
		if isClosed(err) {
			return
		}
		s.mu.Lock()
		live := of.front.sessions[of.key] == of
		switch {
		case !live:
		case err != nil:
			from.failed()
		default:
			live = s.table.answered(of, time.Now())
		}
		s.mu.Unlock()
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if live {
			s.table.count.replied(d.n, of.front.socket.reply(d.bytes(), from))
		}
		d.free()
	}
}

// tendLater has idle sessions end in time. The mu is held.
func (s *udpShard) tendLater() {
	if s.tending == nil && s.table.count.open.Load() > 0 {
		s.tending = time.AfterFunc(s.table.granule(), s.tend)
	}
}

func (s *udpShard) tend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tending = nil
	s.table.expire(time.Now())
	s.tendLater()
}
