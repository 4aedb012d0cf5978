package relay

import "golang.org/x/sys/unix"

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

// drop closes a pipe, and discards its bytes.
func (p *pipes) drop(s *Share, pp *pipe) {
	p.budget.Give(s, 1)
	pp.close()
}

func (pp *pipe) close() {
	unix.Close(pp.r)
	unix.Close(pp.w)
}

func (p *pipes) closeFree() {
	for _, pp := range p.free {
		pp.close()
	}
	p.free = nil
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
