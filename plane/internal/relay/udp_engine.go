package relay

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// udpTables is the number of tables of an engine. A flood in one costs the others only CPU time.
const udpTables = 64

// udpEngine serves UDP: each socket has a goroutine that reads and forwards its datagrams.
type udpEngine struct {
	relay  *Relay
	tables [udpTables]*udpTable
	count  udpCounters
	work   sync.WaitGroup
}

func newUDP(r *Relay, budget *Budget) *udpEngine {
	e := &udpEngine{relay: r}
	for i := range e.tables {
		e.tables[i] = newUDPTable(r.cfg.UDPIdle, budget, &e.count, e.dial)
	}
	return e
}

func (e *udpEngine) listen(owner *Listener, at Listening) (socket, netip.AddrPort, error) {
	var socket *udpSocket
	if err := e.relay.ns.run(func() (err error) {
		socket, err = newFrontSocket(at.Addr)
		return err
	}); err != nil {
		return nil, at.Addr, listenError(err)
	}
	f := newUDPFront(owner, socket.addr())
	f.table, f.socket = e.tables[owner.group.table%udpTables], socket
	e.work.Go(f.receive)
	return f, f.at, nil
}

// close ends the sessions too: without the socket, no reply can reach their clients.
func (f *udpFront) close() {
	f.table.mu.Lock()
	defer f.table.mu.Unlock()
	if !f.closed {
		f.closed = true
		f.table.close(f)
		f.socket.close()
	}
}

// buffers are for a datagram each. A socket needs one only while it has something to read.
var buffers = sync.Pool{New: func() any { return new([datagramSize]byte) }}

// datagram is a datagram that was read. Only listeners' sockets set the fields of the client.
type datagram struct {
	buf    *[datagramSize]byte
	n      int
	client netip.AddrPort
	received
}

func (d *datagram) bytes() []byte { return d.buf[:d.n] }

// free returns the buffer. The datagram keeps no reference, because its goroutine may wait for a
// long time.
func (d *datagram) free() {
	buffers.Put(d.buf)
	d.buf = nil
}

// received is the host's information about a client's datagram.
type received struct {
	local   netip.Addr // the address of the host that it was sent to
	unicast bool
	hops    int // number of routers that may still pass it on; 0 if unknown
}

// receive forwards the datagrams of clients.
func (f *udpFront) receive() {
	for {
		d, err := f.socket.fromClient()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(time.Millisecond) // do not spin while the host is out of memory
		default:
			f.table.take(f, &d)
			d.free()
		}
	}
}

// take forwards one datagram that a listener has read.
func (t *udpTable) take(f *udpFront, d *datagram) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case f.closed:
	case !d.unicast || d.hops == 1:
		// The relay is a router among others: two relays whose backends are each other would pass a
		// datagram on forever.
		t.count.malformed.Add(1)
	default:
		t.forward(f, udpKey{d.client, d.local}, d.bytes(), max(d.hops-1, 0), time.Now())
		t.tendLater()
	}
}

// dial makes the socket of a session. The table's mu is held.
func (e *udpEngine) dial(s *udpSession) error {
	var socket *udpSocket
	if err := e.relay.ns.run(func() (err error) {
		socket, err = newBackendSocket(s, e.relay)
		return err
	}); err != nil {
		return err
	}
	s.socket = socket
	e.work.Go(func() { s.reply(socket) })
	return nil
}

// reply passes on the replies of a backend until the session ends.
func (s *udpSession) reply(from *udpSocket) {
	t := s.front.table
	for {
		d, err := from.fromBackend()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		t.mu.Lock()
		live := s.front.sessions[s.key] == s
		switch {
		case !live:
		case err != nil:
			from.failed()
		default:
			live = t.answered(s, time.Now())
		}
		t.mu.Unlock()
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		switch {
		case !live:
		case s.front.socket.reply(d.bytes(), from) != nil:
			t.count.sendFailed.Add(1)
		default:
			t.count.toClients.Add(1)
			t.count.toClientBytes.Add(uint64(d.n))
		}
		d.free()
	}
}

// tendLater schedules the end of idle sessions. The mu is held.
func (t *udpTable) tendLater() {
	if t.tending == nil && len(t.groups) > 0 {
		t.tending = time.AfterFunc(t.granule(), t.tend)
	}
}

func (t *udpTable) tend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tending = nil
	t.expire(time.Now())
	t.tendLater()
}
