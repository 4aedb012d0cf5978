package relay

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// trainBytes and trainLength bound what is joined to one message. The kernel takes 65,507 bytes and, before 6.9, 64 datagrams.
	trainBytes  = 65000
	trainLength = 64
	// fewSlots left in a batch are not worth a system call: it is sent first.
	fewSlots = 16
	// offloadAgain is how long trains are shorter after one was refused: links and routes change.
	offloadAgain = 10 * time.Second
)

// datagram is a message that was received, and where it goes.
type datagram struct {
	to      udpAddr
	key     udpKey // of its session
	session uint32
	length  int
	segment int // as in received
	hops    int // that are left behind this node, to a backend; 0 to a client
	next    int // in the list of the socket that sends it
}

// outgoing is a message to be sent: datagrams of one session that follow each other.
type outgoing struct {
	*datagram       // the first
	iov, parts int  // in udpBatch.sendIov
	bytes      int  // of all
	segment    int  // size of its datagrams, 0: it is one
	full       bool // takes no more
}

// udpBatch is memory for one round of a loop: nothing is allocated for a datagram.
type udpBatch struct {
	bufs        []byte
	recv        [batchSize]mmsghdr
	recvIov     [batchSize]unix.Iovec
	recvName    [batchSize][nameSize]byte
	recvControl [batchSize][recvControlSize]byte
	datagrams   [batchSize]datagram
	used        int

	out         []outgoing
	send        [batchSize]mmsghdr
	sendIov     [batchSize]unix.Iovec
	sendName    [batchSize][nameSize]byte
	sendControl [batchSize][]byte
	// one is for datagrams that are sent alone.
	one        [1]mmsghdr
	oneIov     unix.Iovec
	oneName    [nameSize]byte
	oneControl []byte
	// waiting are the sockets that have something to send.
	waiting []*udpSocket
}

func newUDPBatch() *udpBatch {
	b := &udpBatch{bufs: make([]byte, batchSize*messageSize), oneControl: make([]byte, sendControlSize)}
	controls := make([]byte, batchSize*sendControlSize)
	for i := range batchSize {
		b.recvIov[i].Base = &b.bufs[i*messageSize]
		b.recvIov[i].SetLen(messageSize)
		h := &b.recv[i].hdr
		h.Name, h.Control, h.Iov = &b.recvName[i][0], &b.recvControl[i][0], &b.recvIov[i]
		h.SetIovlen(1)
		b.sendControl[i] = controls[i*sendControlSize : (i+1)*sendControlSize]
		h = &b.send[i].hdr
		h.Name, h.Control = &b.sendName[i][0], &b.sendControl[i][0]
	}
	h := &b.one[0].hdr
	h.Name, h.Control, h.Iov = &b.oneName[0], &b.oneControl[0], &b.oneIov
	h.SetIovlen(1)
	return b
}

// receive takes what has come to a socket, up to a batch, and reports an error of the network that is in the way.
func (l *udpLoop) receive(s *udpSocket) {
	b := l.batch
	if batchSize-b.used < fewSlots {
		l.flush()
	}
	msgs := b.recv[b.used:]
	for i := range msgs {
		h := &msgs[i].hdr
		h.Namelen, h.Flags = nameSize, 0
		h.SetControllen(recvControlSize)
	}
	n, errno := recvmmsg(s.fd, msgs)
	if errno != 0 {
		if errno != unix.EAGAIN && errno != unix.EINTR {
			l.readErrors(s)
		}
		return
	}
	for slot := b.used; slot < b.used+n; slot++ {
		if via := l.route(s, slot); via != nil {
			b.queue(via, slot)
		}
	}
	b.used += n
}

// route finds where a message goes, and through which socket. nil: it is dropped, and has been counted.
func (l *udpLoop) route(s *udpSocket, slot int) *udpSocket {
	b := l.batch
	d, m := &b.datagrams[slot], &b.recv[slot]
	from, ok := getName(b.recvName[slot][:min(m.hdr.Namelen, nameSize)])
	info := parseControl(b.recvControl[slot][:min(uint64(m.hdr.Controllen), recvControlSize)])
	if !ok || m.hdr.Flags&unix.MSG_TRUNC != 0 || s.front != nil && !info.unicast {
		l.sessions.count.malformed.Add(1)
		return nil
	}
	d.length, d.segment = int(m.length), info.segment
	if s.front == nil {
		d.session = l.sessions.fromBackend(l.front, s.number, &from, l.now)
		if d.session == 0 {
			return nil
		}
		d.key, d.hops = l.sessions.at(d.session).key, 0
		d.to = d.key.client
		return l.fronts[d.key.listener]
	}
	// The relay is a router among others, or two of them whose backends are each other would pass a datagram on for ever.
	if d.hops = info.hops - 1; d.hops == 0 {
		l.sessions.count.malformed.Add(1)
		return nil
	}
	d.hops = max(d.hops, 0)
	d.key = udpKey{client: from, local: info.local, listener: s.front.id}
	d.session = l.sessions.session(s.front, &d.key, l.now)
	return l.towards(d)
}

// towards returns the socket to the backend of a datagram's session, nil for none.
func (l *udpLoop) towards(d *datagram) *udpSocket {
	if d.session == 0 {
		return nil
	}
	session := l.sessions.at(d.session)
	backend := &l.sessions.backends[session.backend]
	d.to = backend.addr
	return l.pools[family(backend.six)][session.socket]
}

// queue puts a datagram at the end of what a socket is to send.
func (b *udpBatch) queue(via *udpSocket, slot int) {
	b.datagrams[slot].next = 0
	if via.last == 0 {
		via.first = slot + 1
		b.waiting = append(b.waiting, via)
	} else {
		b.datagrams[via.last-1].next = slot + 1
	}
	via.last = slot + 1
}

// flush sends all that has been received.
func (l *udpLoop) flush() {
	b := l.batch
	for _, s := range b.waiting {
		b.collect(s, l.segmentLimit())
		l.transmit(s)
		s.first, s.last = 0, 0
	}
	b.waiting = b.waiting[:0]
	b.used = 0
}

// collect makes messages of what a socket is to send. Datagrams of a session that follow each other and have the same
// size, the last perhaps a shorter one, go in one message, which the kernel cuts up (UDP_SEGMENT), if they have no
// more than limit bytes.
func (b *udpBatch) collect(s *udpSocket, limit int) {
	b.out = b.out[:0]
	iov := 0
	for next := s.first; next != 0; {
		slot := next - 1
		d := &b.datagrams[slot]
		next = d.next
		b.sendIov[iov].Base = &b.bufs[slot*messageSize]
		b.sendIov[iov].SetLen(d.length)
		iov++
		if n := len(b.out); n > 0 && b.out[n-1].join(d, limit) {
			continue
		}
		b.out = append(b.out, outgoing{datagram: d, iov: iov - 1, parts: 1, bytes: d.length, segment: d.segment, full: d.segment > 0})
	}
	for i := range b.out {
		o := &b.out[i]
		h := &b.send[i].hdr
		h.Iov = &b.sendIov[o.iov]
		h.SetIovlen(o.parts)
		b.address(h, &b.sendName[i], b.sendControl[i], s, o, o.trainSegment())
	}
}

// join reports whether a datagram goes in the same message.
func (o *outgoing) join(d *datagram, limit int) bool {
	size := o.length
	if o.full || d.segment > 0 || d.session != o.session || d.to != o.to || d.key != o.key || d.hops != o.hops ||
		size == 0 || size > limit || d.length == 0 || d.length > size || o.bytes+d.length > trainBytes {
		return false
	}
	o.parts++
	o.bytes += d.length
	o.segment = size
	o.full = d.length < size || o.parts == trainLength
	return true
}

// trainSegment is the size of segments that the kernel is told.
func (o *outgoing) trainSegment() int {
	if segments(o.bytes, o.segment) > 1 {
		return o.segment
	}
	return 0
}

// address fills in whom a message is for, and from which address.
func (b *udpBatch) address(h *unix.Msghdr, name *[nameSize]byte, control []byte, s *udpSocket, o *outgoing, segment int) {
	h.Namelen = putName(name, &o.to, s.six)
	var from *[16]byte
	if s.front != nil {
		from = &o.key.local
	}
	n := putControl(control, from, s.six, segment, o.hops)
	h.Control = nil
	if n > 0 {
		h.Control = &control[0]
	}
	h.SetControllen(n)
}

// transmit sends the messages that were collected.
func (l *udpLoop) transmit(s *udpSocket) {
	b := l.batch
	again := false
	for i := 0; i < len(b.out); {
		n, errno := sendmmsg(s.fd, b.send[i:len(b.out)])
		if errno == 0 {
			l.sessions.count.calls.Add(1)
			l.sessions.count.messages.Add(uint64(n))
			for j := range n {
				o := &b.out[i+j]
				l.sent(s, segments(o.bytes, o.segment), o.bytes)
			}
			i += n
			again = false
			continue
		}
		if errno == unix.EINTR {
			continue
		}
		if s.front == nil && !again {
			// Perhaps the error is that of a datagram before, to another backend. It is reported once.
			l.readErrors(s)
			again = true
			continue
		}
		l.rescue(s, &b.out[i], errno)
		i++
		again = false
	}
}

func (l *udpLoop) sent(s *udpSocket, datagrams, bytes int) {
	c := l.sessions.count
	if s.front != nil {
		c.toClients.Add(uint64(datagrams))
		c.toClientBytes.Add(uint64(bytes))
	} else {
		c.toBackends.Add(uint64(datagrams))
		c.toBackendBytes.Add(uint64(bytes))
	}
}

// rescue sends a message that the kernel refuses one datagram at a time, if it is a train, and to another backend, if that
// one cannot be reached.
func (l *udpLoop) rescue(s *udpSocket, o *outgoing, errno unix.Errno) {
	if train := o.trainSegment(); train > 0 {
		switch errno {
		case unix.EINVAL, unix.EMSGSIZE: // longer than the link takes
			l.shorten(train - 1)
			errno = 0
		case unix.EIO: // a link that cannot do checksums
			l.shorten(0)
			errno = 0
		}
	}
	for part := o.iov; part < o.iov+o.parts; part++ {
		iov := &l.batch.sendIov[part]
		length, segment := int(iov.Len), o.segment
		if segment == 0 {
			segment = max(length, 1)
		}
		slot := l.batch.slotOf(iov.Base)
		for off := 0; off == 0 || off < length; off += segment {
			piece := l.batch.bufs[slot*messageSize+off:][:min(segment, length-off)]
			if e := errno; e != 0 || l.sendAlone(s, o, piece, &e) != nil {
				l.sendElsewhere(s, o, piece, e)
			}
		}
	}
}

// slotOf is the place of a buffer in the batch.
func (b *udpBatch) slotOf(base *byte) int {
	return int(uintptr(unsafe.Pointer(base))-uintptr(unsafe.Pointer(&b.bufs[0]))) / messageSize
}

// sendAlone sends one datagram.
func (l *udpLoop) sendAlone(s *udpSocket, o *outgoing, piece []byte, errno *unix.Errno) error {
	b := l.batch
	h := &b.one[0].hdr
	b.oneIov.Base = nil
	if len(piece) > 0 {
		b.oneIov.Base = &piece[0]
	}
	b.oneIov.SetLen(len(piece))
	b.address(h, &b.oneName, b.oneControl, s, o, 0)
	_, *errno = sendmmsg(s.fd, b.one[:])
	if *errno != 0 && s.front == nil {
		l.readErrors(s)
		_, *errno = sendmmsg(s.fd, b.one[:])
	}
	if *errno != 0 {
		return *errno
	}
	l.sent(s, 1, len(piece))
	return nil
}

// sendElsewhere sends a datagram whose backend cannot be reached to others, until one can.
func (l *udpLoop) sendElsewhere(s *udpSocket, o *outgoing, piece []byte, errno unix.Errno) {
	if s.front == nil && tellsOfBackend(errno) {
		l.tried = l.tried[:0]
		d := *o.datagram
		d.session = l.sessions.clients[d.key] // an earlier datagram may have gone elsewhere already
		for range maxAttempts {
			if d.session == 0 {
				break
			}
			front := l.front(d.key.listener)
			if session := l.sessions.at(d.session); l.sessions.backends[session.backend].addr == d.to {
				l.sessions.failed(front, d.session, errno)
				l.tried = append(l.tried, d.to.addrPort())
				d.session = l.sessions.elsewhere(front, d.session, l.tried, l.now)
			}
			via := l.towards(&d)
			if via == nil {
				return // and has been counted
			}
			if l.sendAlone(via, &outgoing{datagram: &d}, piece, &errno) == nil {
				return
			}
			if !tellsOfBackend(errno) {
				break
			}
		}
	}
	l.sessions.count.sendFailed.Add(1)
}

// tellsOfBackend reports whether another backend may have more luck. A full queue, or a datagram that is too long, is
// the same for all.
func tellsOfBackend(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.EMSGSIZE:
		return false
	}
	return true
}

// segmentLimit is how long the datagrams of a train may be.
func (l *udpLoop) segmentLimit() int {
	if !l.offload {
		return 0
	}
	if l.now >= l.shortUntil {
		return messageSize
	}
	return l.short
}

func (l *udpLoop) shorten(limit int) {
	l.short = min(limit, l.segmentLimit())
	l.shortUntil = l.now + offloadAgain
}

// udpErrors is memory for reading what the network reports.
type udpErrors struct {
	hdr     unix.Msghdr
	name    [nameSize]byte
	control [512]byte
	iov     unix.Iovec
	payload [1]byte
}

func newUDPErrors() *udpErrors {
	e := &udpErrors{}
	e.iov.Base = &e.payload[0]
	e.iov.SetLen(len(e.payload))
	e.hdr.Name, e.hdr.Control, e.hdr.Iov = &e.name[0], &e.control[0], &e.iov
	e.hdr.SetIovlen(1)
	return e
}

// readErrors reads what the network reports about datagrams that were sent: the sessions to backends that cannot be reached
// go elsewhere. Anybody may claim that of somebody else, so what counts for more than a session must come from the backend, or
// from this node.
func (l *udpLoop) readErrors(s *udpSocket) {
	e := l.errors
	for range batchSize { // what is left is reported again
		e.hdr.Namelen, e.hdr.Flags = nameSize, 0
		e.hdr.SetControllen(len(e.control))
		_, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&e.hdr)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			break
		}
		asked, ok := getName(e.name[:min(e.hdr.Namelen, nameSize)])
		if !ok || s.front != nil {
			continue
		}
		why, by := unreachable(e.control[:min(uint64(e.hdr.Controllen), uint64(len(e.control)))])
		if why == 0 {
			continue
		}
		itself := by.ip == asked.ip
		if id := l.sessions.refused(s.number, &asked, itself && why == unix.ECONNREFUSED); id != 0 && (itself || ownAddress(by, s.six)) {
			l.sessions.failed(l.front(l.sessions.at(id).key.listener), id, why)
		}
	}
	// An error that nothing in the queue explains would be reported for ever.
	_, _ = unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
}
