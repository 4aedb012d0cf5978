package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Way is from where to where [Traffic] flows.
type Way struct {
	From string
	To   netip.AddrPort
	// Seen is the host as which the server must see the client; "" if that does not matter.
	Seen string
	// Requests alone: no connection lives on.
	Requests bool
	// Port is the first of 2,000 source ports of the client, used by turns, so that no two ways
	// share any; 0 leaves the choice to the system.
	Port uint16
	// Rest is the factor between the rest of the loop and the time of the request or exchange
	// before it: on a slow machine the traffic leaves the processors to the tested program.
	Rest int
}

// Traffic is a loop of TCP requests on each of several ways, and long-lived connections in constant
// use, while a test changes the network between the hosts. The first failure of a way ends it. A
// repeated SYN is a failure too, unless the machine is so slow that answers may be late:
// repetitions would hide an outage of less than a second.
type Traffic struct {
	lab     *Lab
	streams []*stream
	stop    chan struct{}
	running sync.WaitGroup
}

// stream is the traffic of one way.
type stream struct {
	Way
	lab                 *Lab
	opened              atomic.Int64
	requests, exchanges atomic.Int64
	failed              atomic.Pointer[error]
	slowest             time.Duration // of the requests without repetition

	mu   sync.Mutex
	live []*Conn
}

// StartTraffic opens a connection on each way and begins.
func (l *Lab) StartTraffic(ways ...Way) (*Traffic, error) {
	t := &Traffic{lab: l, stop: make(chan struct{})}
	for _, w := range ways {
		t.streams = append(t.streams, &stream{Way: w, lab: l})
	}
	if err := t.Open(); err != nil {
		return nil, err
	}
	for _, s := range t.streams {
		t.running.Go(func() { s.loop(t.stop, &s.requests, s.request) })
		if !s.Requests {
			t.running.Go(func() { s.loop(t.stop, &s.exchanges, s.exchange) })
		}
	}
	return t, nil
}

// Open makes one more connection on each way that lives until the end.
func (t *Traffic) Open() error {
	for _, s := range t.streams {
		if s.Requests {
			continue
		}
		c, err := s.open()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.live = append(s.live, c)
		s.mu.Unlock()
	}
	return nil
}

// timeout is how long an answer may take: the hosts share the processors with all other programs,
// and losses are visible otherwise.
const timeout = 30 * time.Second

// More waits until each way has made some more requests, and has used each connection that lives,
// however slow the machine is. It returns at once if a way has failed, which Stop reports.
func (t *Traffic) More() error {
	for _, s := range t.streams {
		counts := []*atomic.Int64{&s.requests, &s.exchanges}
		if s.Requests {
			counts = counts[:1]
		}
		for _, n := range counts {
			more := n.Load() + max(3, int64(len(s.connections()))+1)
			for end := time.Now().Add(2 * timeout); n.Load() < more &&
				s.failed.Load() == nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					return fmt.Errorf("%s: only %d requests in all, and %d exchanges", s, s.requests.Load(),
						s.exchanges.Load())
				}
			}
		}
	}
	return nil
}

// Stop ends the traffic and returns the failures.
func (t *Traffic) Stop() error {
	close(t.stop)
	t.running.Wait()
	var errs []error
	for _, s := range t.streams {
		if err := s.failed.Load(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s, *err))
		}
		for _, c := range s.connections() {
			c.Close()
		}
	}
	return errors.Join(errs...)
}

// open makes a connection, from the next of the way's ports.
func (s *stream) open() (*Conn, error) {
	opts := DialOptions{Timeout: timeout}
	n := uint16(s.opened.Add(1) % 2000)
	if s.Port == 0 {
		return s.lab.Open(s.From, TCP, s.To, opts)
	}
	for {
		opts.Local = netip.AddrPortFrom(netip.Addr{}, s.Port+n)
		c, err := s.lab.Open(s.From, TCP, s.To, opts)
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) { // a connection lives there
			return c, err
		}
		n = uint16(s.opened.Add(1) % 2000)
	}
}

func (s *stream) String() string { return fmt.Sprintf("%s to %s", s.From, s.To) }

func (s *stream) connections() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.live)
}

// loop repeats one action.
func (s *stream) loop(stop chan struct{}, count *atomic.Int64, once func(n int) error) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		began := time.Now()
		if err := once(n); err != nil {
			s.failed.CompareAndSwap(nil, &err)
			return
		}
		count.Add(1)
		time.Sleep(time.Duration(s.Rest) * time.Since(began))
	}
}

// slow is the time of an answer from which a repeated SYN proves nothing: the first repetition
// comes after 1 s.
const slow = 100 * time.Millisecond

func (s *stream) request(n int) error {
	began := time.Now()
	c, err := s.open()
	if err != nil {
		return fmt.Errorf("request %d: %w", n, err)
	}
	defer c.Close()
	switch again, err := c.repeated(); {
	case err != nil:
		return fmt.Errorf("request %d: %w", n, err)
	case again == 0:
		s.slowest = max(s.slowest, time.Since(began))
	case s.slowest < slow:
		return fmt.Errorf("request %d: %d packets had to be repeated", n, again)
	}
	if s.Seen != "" && Owner(c.first.Seen.Addr()) != s.Seen {
		return fmt.Errorf("request %d came from %s", n, c.first.Seen)
	}
	return nil
}

func (s *stream) exchange(n int) error {
	live := s.connections()
	if _, err := live[n%len(live)].Exchange(); err != nil {
		return fmt.Errorf("connection %d, after %d exchanges: %w", n%len(live), n, err)
	}
	return nil
}

// repeated returns the number of segments that the client retransmitted.
func (c *Conn) repeated() (int, error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return int(info.Total_retrans), nil
}
