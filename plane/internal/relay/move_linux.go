package relay

import (
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// outcome is the result of moving bytes from one end to the other.
type outcome uint8

const (
	nothingLeft  outcome = iota // until epoll reports a change
	turnOver                    // there is more, but others have their turn
	sourceFailed                // earlier bytes have been passed on, as far as there was room
	targetFailed
)

// turnBytes is how much one connection moves in one direction before others have their turn.
const turnBytes = 1 << 20

// move moves bytes from one end to the other. It reads only if the other end can take some. Bytes
// that the other end then refuses stay in the pipe, which limits the cost of a slow reader.
func (l *loop) move(c *conn, from int) outcome {
	if c.from.proto == lb.SCTP {
		return l.moveMessages(c, from)
	}
	src, dst := &c.ends[from], &c.ends[1-from]
	before := l.moved
	result := l.moveBytes(&c.from.pipes, src, dst)
	if src.pipe != nil && src.inPipe == 0 {
		l.pipes.put(&c.from.pipes, src.pipe)
		src.pipe = nil
	}
	if l.moved != before {
		c.active = l.elapsed()
	}
	c.count(from, l.moved-before)
	return result
}

// count counts bytes that were moved from one end to the other.
func (c *conn) count(from int, n int64) {
	switch {
	case n == 0:
	case from == client:
		c.from.count.toBackends.Add(uint64(n))
	default:
		c.from.count.toClients.Add(uint64(n))
	}
}

func (l *loop) moveBytes(s *Share, src, dst *end) outcome {
	for turn := l.moved + turnBytes; ; {
		switch {
		case src.inPipe > 0 && !dst.writable:
			return nothingLeft
		case src.inPipe > 0:
			n, err := splice(src.pipe.r, int(dst.fd), int(src.inPipe))
			if err == unix.EAGAIN {
				dst.writable = false
				return nothingLeft
			}
			if err != nil {
				return targetFailed
			}
			src.inPipe -= int32(n)
			l.moved += int64(n)
		case src.finished:
			dst.finish()
			return nothingLeft
		case !src.readable || !dst.writable:
			return nothingLeft
		case l.moved >= turn:
			return turnOver
		default:
			if result := l.read(s, src, dst); result != nothingLeft {
				return result
			}
		}
	}
}

// finish sends the end of the stream.
func (e *end) finish() {
	if !e.shut {
		e.shut = true
		unix.Shutdown(int(e.fd), unix.SHUT_WR) // the socket reports an error again
	}
}

// read reads from src into a pipe, or copies to dst if there is no pipe.
func (l *loop) read(s *Share, src, dst *end) outcome {
	if src.pipe == nil && !src.copies {
		src.pipe = l.pipes.get(s)
	}
	if src.pipe == nil || src.copies {
		return l.copy(src, dst)
	}
	n, err := splice(int(src.fd), src.pipe.w, spliceBytes)
	switch {
	case err == unix.EAGAIN:
		src.readable = false
	case err != nil:
		return sourceFailed
	case n == 0:
		src.finished = true
	default:
		src.inPipe = int32(n)
	}
	return nothingLeft
}

// copy copies bytes through memory. It removes them from src after dst has taken them, so it
// buffers none.
func (l *loop) copy(src, dst *end) outcome {
	n, _, err := unix.Recvfrom(int(src.fd), l.buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err == unix.EAGAIN:
		src.readable = false
		return nothingLeft
	case err == unix.EINTR:
		return nothingLeft
	case err != nil:
		return sourceFailed
	case n == 0:
		src.finished = true
		return nothingLeft
	}
	sent, err := unix.SendmsgN(int(dst.fd), l.buf[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	switch {
	case err == unix.EAGAIN:
		dst.writable = false
		return nothingLeft
	case err == unix.EINTR:
		return nothingLeft
	case err != nil:
		return targetFailed
	}
	l.moved += int64(sent)
	for sent > 0 {
		n, _, err := unix.Recvfrom(int(src.fd), l.buf[:sent], unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return sourceFailed
		}
		sent -= n
	}
	return nothingLeft
}

// pipe holds bytes that are under way from one socket to another.
type pipe struct{ r, w int }

// pipes are the empty pipes of a loop. A connection takes one while bytes are in transit, and keeps
// it only if its peer does not read. The budget of pipes limits the descriptors and kernel memory
// of slow readers, and no listener gets all of it.
type pipes struct {
	free   []*pipe
	budget *Budget
}

const (
	// sparePipes is the number of empty pipes that a loop keeps.
	sparePipes = 16
	// maxPipes is the number of pipes in use at a time, if an eighth of the descriptors suffices
	// for them: with spliceBytes in each they hold 128 MiB.
	maxPipes = 256
	// pipeShare is the part of all descriptors that pipes may take: one in so many.
	pipeShare = 8
	// pipeSize is the capacity of a pipe, 64 KiB if the kernel does not allow more. Each piece of
	// data takes the place of a page, however small it is. A stream took 0.3 ms of the processor
	// for a megabyte, with 64 KiB 0.5 ms.
	pipeSize = 1 << 20
	// spliceBytes is the number of bytes read into a pipe at a time.
	spliceBytes = 512 << 10
)

// get returns an empty pipe, or nil without room for another.
func (p *pipes) get(s *Share) *pipe {
	if !p.budget.Take(s, 1) {
		return nil
	}
	if n := len(p.free); n > 0 {
		last := p.free[n-1]
		p.free = p.free[:n-1]
		return last
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		p.budget.Give(s, 1)
		return nil
	}
	unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{fds[0], fds[1]}
}

// put takes back a pipe that is empty.
func (p *pipes) put(s *Share, pp *pipe) {
	p.budget.Give(s, 1)
	if len(p.free) < sparePipes {
		p.free = append(p.free, pp)
	} else {
		pp.close()
	}
}

// close discards the pipe's bytes.
func (pp *pipe) close() {
	unix.Close(pp.r)
	unix.Close(pp.w)
}

// splice moves up to n bytes without waiting. The error is EAGAIN without bytes or room.
func splice(from, to, n int) (int, error) {
	for {
		moved, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if err != unix.EINTR {
			return int(moved), err
		}
	}
}
