package relay

import "golang.org/x/sys/unix"

// pipe holds bytes that are under way from one socket to another.
type pipe struct{ r, w int }

// pipes are those of a loop that hold nothing. A connection takes one while bytes are under way. It keeps it only if its peer
// does not take them; so that peers who read slowly cannot take all descriptors, there is a bound for these.
type pipes struct {
	free []*pipe
	made int // and not closed
	max  int
}

// sparePipes is how many pipes a loop keeps for later.
const sparePipes = 16

// pipeSize is how many bytes a pipe is to hold, 64 KiB if the kernel does not allow that. With it a stream took 0.3 ms of the
// processor for a megabyte, with 64 KiB 0.5 ms.
const pipeSize = 1 << 20

// get returns an empty pipe; nil if there is none to be had.
func (p *pipes) get() *pipe {
	if n := len(p.free); n > 0 {
		last := p.free[n-1]
		p.free = p.free[:n-1]
		return last
	}
	if p.made >= p.max {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return nil
	}
	unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // without it there are 64 KiB
	p.made++
	return &pipe{fds[0], fds[1]}
}

// put takes back a pipe that is empty.
func (p *pipes) put(pp *pipe) {
	if len(p.free) < sparePipes {
		p.free = append(p.free, pp)
		return
	}
	p.drop(pp)
}

// drop closes a pipe with all that is in it.
func (p *pipes) drop(pp *pipe) {
	unix.Close(pp.r)
	unix.Close(pp.w)
	p.made--
}

func (p *pipes) close() {
	for _, pp := range p.free {
		p.drop(pp)
	}
	p.free = nil
}

// splice moves up to n bytes and does not wait. It is EAGAIN if there are none, or no room for them.
func splice(from, to, n int) (int, error) {
	for {
		moved, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if err != unix.EINTR {
			return int(moved), err
		}
	}
}
