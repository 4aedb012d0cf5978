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
