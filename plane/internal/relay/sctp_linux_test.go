package relay

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

// needsSCTP skips a test on a kernel without SCTP. test/vm/suites runs the test on kernels with
// SCTP.
func needsSCTP(t *testing.T) {
	t.Helper()
	fd, err := newSocket(loopback.Addr(), lb.SCTP)
	if err != nil {
		if os.Getenv("PLANETEST_VM") != "" {
			t.Fatal(err) // such a VM must have SCTP
		}
		t.Skipf("test/vm/suites proves it on kernels that have SCTP: %v", err)
	}
	unix.Close(fd)
}

// Listen fails with a clear error exactly if the kernel lacks SCTP.
func TestSCTPListen(t *testing.T) {
	kerneltest.Every(t)
	r := newRelay(t, Config{})
	_, err := r.Listen(Listening{lb.SCTP, loopback}, to(), nil)
	probe, probeErr := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if probeErr == nil {
		unix.Close(probe)
	}
	if (err == nil) != (probeErr == nil) || err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v; the kernel says %v", err, probeErr)
	}
}

// sctpPeer is one end of an association. Its calls block.
type sctpPeer struct {
	t  testing.TB
	fd int
}

func sctpSocket(t testing.TB) sctpPeer {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		t.Fatal(err)
	}
	wait := unix.NsecToTimeval(int64(timeout))
	if err := errors.Join(tuneSCTP(fd), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&wait)); err != nil {
		t.Fatal(err)
	}
	return sctpPeer{t, fd}
}

func (p sctpPeer) say(text []byte, info sndInfo) error {
	l := loop{}
	e := end{fd: int32(p.fd)}
	for {
		if err := l.send(&e, &message{data: text, info: info}); err != unix.EAGAIN {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// notice returns the next message; nil when there is no other.
func (p sctpPeer) notice() ([]byte, sndInfo, error) {
	buf, control := make([]byte, 1<<20), make([]byte, 256)
	var all []byte
	for {
		n, controlled, flags, _, err := unix.Recvmsg(p.fd, buf, control, 0)
		if err == unix.EINTR {
			continue
		}
		if err == unix.ENOTCONN { // after our shutdown no more messages arrive
			return nil, sndInfo{}, nil
		}
		if err != nil || n == 0 {
			return nil, sndInfo{}, err
		}
		all = append(all, buf[:n]...)
		if flags&unix.MSG_EOR != 0 {
			return all, infoOf(control[:controlled]), nil
		}
	}
}

// serveSCTP runs a backend that handles each association in a goroutine of its own.
func serveSCTP(t testing.TB, handle func(sctpPeer)) netip.AddrPort {
	t.Helper()
	p := sctpSocket(t)
	if err := errors.Join(unix.Bind(p.fd, sockaddr(loopback)), unix.Listen(p.fd, 128)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(p.fd)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		unix.Shutdown(p.fd, unix.SHUT_RDWR)
		close(ended)
		unix.Close(p.fd)
	})
	go func() {
		for {
			fd, _, err := unix.Accept4(p.fd, unix.SOCK_CLOEXEC)
			select {
			case <-ended:
				return
			default:
			}
			if err != nil {
				continue
			}
			go func() {
				defer unix.Close(fd)
				handle(sctpPeer{t, fd})
			}()
		}
	}()
	return addrPort(sa)
}

func dialSCTP(t testing.TB, at netip.AddrPort) sctpPeer {
	t.Helper()
	p := sctpSocket(t)
	t.Cleanup(func() { unix.Close(p.fd) })
	if err := unix.Connect(p.fd, sockaddr(at)); err != nil {
		t.Fatal(err)
	}
	return p
}

// echoSCTP sends back each message as it came.
func echoSCTP(p sctpPeer) {
	for {
		text, info, err := p.notice()
		if text == nil || err != nil || p.say(text, info) != nil {
			return
		}
	}
}

func listenSCTP(t testing.TB, r *Relay, b Balancer) *Listener {
	t.Helper()
	return listenAt(t, r, Listening{lb.SCTP, loopback}, b)
}

// Messages arrive whole, in order, on their stream, ordered or unordered, with their protocol
// number, in both directions.
func TestSCTPMessages(t *testing.T) {
	kerneltest.Every(t)
	needsSCTP(t)
	r := newRelay(t, Config{})
	p := dialSCTP(t, listenSCTP(t, r, to(serveSCTP(t, echoSCTP))).Addr())
	random := rand.New(rand.NewPCG(1, 2))
	for i, size := range []int{1, 2, 1400, 1500, 65535, 65536, 65537, 150_000, 3, 200_000, 7} {
		text := make([]byte, size)
		for j := range text {
			text[j] = byte(random.Uint32())
		}
		info := sndInfo{stream: uint16(i * 25 % maxStreams), ppid: random.Uint32(), flags: uint16(i % 2)}
		if err := p.say(text, info); err != nil {
			t.Fatalf("send %d bytes: %v", size, err)
		}
		got, how, err := p.notice()
		if err != nil || !bytes.Equal(got, text) || how != info {
			t.Fatalf("sent %d bytes as %+v: got %d as %+v, %v", size, info, len(got), how, err)
		}
	}
	// Many small ones are not merged.
	go func() {
		for i := range 500 {
			p.say(fmt.Append(nil, "message ", i), sndInfo{stream: 3})
		}
	}()
	for i := range 500 {
		if got, _, err := p.notice(); string(got) != fmt.Sprint("message ", i) {
			t.Fatalf("message %d is %q, %v", i, got, err)
		}
	}
	unix.Shutdown(p.fd, unix.SHUT_WR)
	if got, _, err := p.notice(); got != nil || err != nil {
		t.Errorf("after the end: %q, %v", got, err)
	}
	eventually(t, "no association is open", func() bool { return r.Stats().SCTP.Open == 0 })
	if s := r.Stats().SCTP; s.Accepted != 1 || s.ToBackends != s.ToClients || s.ToBackends < 400_000 {
		t.Errorf("%+v", s)
	}
}

// A peer that does not read makes the sender wait, and then gets everything.
func TestSCTPBackPressure(t *testing.T) {
	kerneltest.Every(t)
	needsSCTP(t)
	r := newRelay(t, Config{})
	stop, count := make(chan struct{}), make(chan int, 1)
	p := dialSCTP(t, listenSCTP(t, r, to(serveSCTP(t, func(p sctpPeer) {
		<-stop
		for n := 0; ; n++ {
			text, info, err := p.notice()
			if text == nil || err != nil || int(info.ppid) != n || len(text) != 10_000 {
				count <- n
				return
			}
		}
	}))).Addr())
	sent := 0
	for text, last := make([]byte, 10_000), time.Now(); time.Since(last) < time.Second; {
		if (&loop{}).send(&end{fd: int32(p.fd)}, &message{data: text, info: sndInfo{ppid: uint32(sent)}}) == nil {
			sent, last = sent+1, time.Now()
		}
		if sent > 2000 {
			t.Fatal("20 MB were accepted, and no peer has read")
		}
	}
	close(stop)
	unix.Shutdown(p.fd, unix.SHUT_WR)
	if n := <-count; n != sent {
		t.Errorf("%d messages arrived of %d", n, sent)
	}
}

// An abort is passed on as an abort. A client does not notice a backend that refuses; without
// another backend the client is aborted.
func TestSCTPAbortAndRetry(t *testing.T) {
	kerneltest.Every(t)
	needsSCTP(t)
	r := newRelay(t, Config{})
	refuses := netip.MustParseAddrPort("127.0.0.1:1")
	b := to(refuses, netip.MustParseAddrPort("127.0.0.1:2"), serveSCTP(t, func(p sctpPeer) {
		p.notice()
		unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}))
	l := listenSCTP(t, r, b)
	for range 4 {
		p := dialSCTP(t, l.Addr())
		if err := p.say([]byte("x"), sndInfo{}); err != nil {
			t.Fatal(err)
		}
		if got, _, err := p.notice(); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if s := r.Stats().SCTP; s.Retried == 0 || s.DialsFailed == 0 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	l.SetBalancer(to(refuses))
	p := sctpSocket(t)
	defer unix.Close(p.fd)
	err := unix.Connect(p.fd, sockaddr(l.Addr()))
	if err == nil {
		_, _, err = p.notice()
	}
	if err != unix.ECONNRESET && err != unix.ECONNREFUSED { // the latter if the abort arrives before connect returns
		t.Errorf("no backend: got %v", err)
	}
}

// The memory for messages is bounded for all associations, for a listener and for a namespace, and
// is returned (TN-45).
func TestSCTPHeldMessagesTN45(t *testing.T) {
	kerneltest.Every(t)
	const room = 90_000 // bytes
	warned := &bytes.Buffer{}
	r := &Relay{cfg: Config{Log: slog.New(slog.NewTextHandler(warned, nil))}}
	l := &loop{engine: &conns{relay: r, held: &Budget{max: room}, full: ratelimit.New(r.cfg.Log, "held messages")}}
	part := message{data: make([]byte, 100)}
	fill := func(s *Share) (ends []*end) {
		for {
			e := &end{}
			if l.hold(s, e, part) != nothingLeft {
				return ends
			}
			ends = append(ends, e)
		}
	}
	greedy, other := NewGroup(), NewGroup()
	var all []*end
	for range 50 { // listeners of one namespace
		s := Share{group: &greedy.held}
		all = append(all, fill(&s)...)
	}
	if got := len(all) * 100; got < room*8/10 || got > room*8/9+100 {
		t.Errorf("one namespace holds %d of %d bytes, want eight ninths at most", got, room)
	}
	s := Share{group: &other.held}
	if len(fill(&s)) == 0 {
		t.Error("nothing is left for another namespace")
	}
	if !strings.Contains(warned.String(), "resetting") {
		t.Errorf("the log says %q", warned)
	}
	e := &end{}
	for range 5 {
		one := Share{}
		l.engine.held = &Budget{max: 10 * maxMessage}
		for l.hold(&one, e, message{data: make([]byte, 60_000)}) == nothingLeft {
		}
		if len(e.held.data) > maxMessage || one.Used() != int64(len(e.held.data)) {
			t.Errorf("%d bytes of a message are held, %d counted", len(e.held.data), one.Used())
		}
		l.unhold(&one, e)
		if one.Used() != 0 || l.engine.held.Used() != 0 || e.held != nil {
			t.Errorf("%d and %d bytes are counted of nothing", one.Used(), l.engine.held.Used())
		}
	}
}

// For peers that do not read, the relay holds no more than its bound: associations beyond it are
// reset, those of another namespace are served, and nothing stays counted once all have ended
// (TN-45).
func TestSCTPStalledPeersTN45(t *testing.T) {
	kerneltest.Every(t)
	needsSCTP(t)
	r := newRelay(t, Config{})
	held := r.conns.(*conns).held
	held.max = 1 << 20
	stop := make(chan struct{})
	listen := func(group *Group, b Balancer) *Listener {
		l, err := r.Listen(Listening{lb.SCTP, loopback}, b, group)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	stalls := listen(NewGroup(), to(serveSCTP(t, func(sctpPeer) { <-stop })))
	text := make([]byte, 200_000)
	reset := 0
	var peers []sctpPeer
	for range 12 {
		p := dialSCTP(t, stalls.Addr())
		peers = append(peers, p)
		for again := 0; again < 200; { // until nothing has moved for a while
			switch err := (&loop{}).send(&end{fd: int32(p.fd)}, &message{data: text}); err {
			case nil:
				again = 0
			case unix.EAGAIN:
				again++
				time.Sleep(time.Millisecond)
			default:
				again = 200
				reset++
			}
			if used := held.Used(); used > held.Max() {
				t.Fatalf("%d bytes are held, want no more than %d", used, held.Max())
			}
		}
	}
	if reset == 0 || held.Used() == 0 {
		t.Errorf("%d of 12 associations were reset, %d bytes are held", reset, held.Used())
	}
	p := dialSCTP(t, listen(NewGroup(), to(serveSCTP(t, echoSCTP))).Addr())
	if err := p.say([]byte("hello"), sndInfo{}); err != nil {
		t.Error(err)
	}
	if got, _, err := p.notice(); string(got) != "hello" {
		t.Errorf("another namespace: %q, %v", got, err)
	}
	close(stop)
	for _, p := range peers {
		unix.Shutdown(p.fd, unix.SHUT_RDWR)
	}
	r.conns.end()
	eventually(t, "no byte is counted any more", func() bool { return held.Used() == 0 })
}

// The structures have the sizes of the kernel's.
func TestSCTPStructures(t *testing.T) {
	kerneltest.Every(t)
	for _, tc := range []struct{ got, want uintptr }{
		{unsafe.Sizeof(sndInfo{}), 16}, {unsafe.Sizeof(rcvInfo{}), 28}, {unsafe.Sizeof(initMsg{}), 8},
		{unsafe.Offsetof(status{}.inStreams), 16}, {unsafe.Offsetof(rcvInfo{}.ppid), 8},
	} {
		if tc.got != tc.want {
			t.Errorf("got %d, want %d", tc.got, tc.want)
		}
	}
}
