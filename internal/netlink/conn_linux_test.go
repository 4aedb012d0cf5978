package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

const nftables = unix.NFNL_SUBSYS_NFTABLES << 8

// message returns a message to netfilter, with strings as attributes.
func message(typ, flags uint16, family byte, seq uint32, attrs ...any) []byte {
	resource := uint16(0)
	if typ == unix.NFNL_MSG_BATCH_BEGIN || typ == unix.NFNL_MSG_BATCH_END {
		resource = unix.NFNL_SUBSYS_NFTABLES
	}
	var e Encoder
	at := e.Netfilter(typ, flags, family, seq, resource)
	for i := 0; i < len(attrs); i += 2 {
		e.Str(uint16(attrs[i].(int)), attrs[i+1].(string))
	}
	e.EndMessage(at)
	return e.B
}

func tables() []byte {
	return message(nftables|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_IPV4, 0)
}

func generation() []byte { return message(nftables|unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, 0) }

// unanswered returns a message that the kernel accepts without an answer.
func unanswered(flags uint16) []byte { return message(unix.NLMSG_NOOP, flags, unix.AF_UNSPEC, 0) }

// addTables returns a transaction that creates tables.
func addTables(names ...string) (bufs [][]byte, last uint32) {
	b := message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, 0)
	for i, name := range names {
		last = uint32(i + 1)
		flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
		if i == len(names)-1 {
			flags |= unix.NLM_F_ACK
		}
		b = append(b, message(nftables|unix.NFT_MSG_NEWTABLE, flags, unix.NFPROTO_IPV4, last, unix.NFTA_TABLE_NAME,
			name)...)
	}
	return [][]byte{b, message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, last+1)}, last
}

// openThere opens a connection in a new network namespace, while the test stays outside of it.
func openThere(t testing.TB, cfg Config) *Conn {
	t.Helper()
	var c *Conn
	var err error
	netlab.NamespaceForTest(t).Do(func() { c, err = Open(cfg) })
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func netfilter(t testing.TB) *Conn {
	t.Helper()
	return openThere(t, Config{Protocol: unix.NETLINK_NETFILTER})
}

func batch(t testing.TB, c *Conn, names ...string) {
	t.Helper()
	bufs, last := addTables(names...)
	if err := c.Batch(t.Context(), bufs, last); err != nil {
		t.Fatalf("make %d tables: %v", len(names), err)
	}
}

func count(c *Conn, ctx context.Context, request []byte) (n int, err error) {
	err = c.Do(ctx, request, func(Message) error { n++; return nil })
	return n, err
}

// expectFresh checks that a request gets its answer, on another socket than the one with that port.
func expectFresh(t *testing.T, c *Conn, port uint32, dumped int) {
	t.Helper()
	if n, err := count(c, t.Context(), tables()); n != dumped || err != nil {
		t.Errorf("then %d tables, %v; want %d", n, err, dumped)
	}
	if now, err := c.Port(); now == port || err != nil {
		t.Errorf("the port is %d, %v; it was %d", now, err, port)
	}
}

func port(t testing.TB, c *Conn) uint32 {
	t.Helper()
	p, err := c.Port()
	must(t, err)
	return p
}

// deafen makes the kernel drop all answers.
func deafen(t testing.TB, c *Conn) {
	t.Helper()
	must(t, c.Filter([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}))
}

// awaited is a context that ends as soon as a goroutine waits for its end, like that of nlconntest,
// which cannot be imported here.
type awaited struct {
	context.Context
	cancel context.CancelFunc
}

func (a awaited) Done() <-chan struct{} {
	a.cancel()
	return a.Context.Done()
}

func endsWhenAwaited(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return awaited{ctx, cancel}
}

func TestAnswers(t *testing.T) {
	c := netfilter(t)
	batch(t, c, "a", "b", "c")
	before := port(t, c)
	for _, q := range []struct {
		what    string
		request []byte
		n       int
		want    error
	}{
		{"a single message ends its answer", generation(), 1, nil},
		{"an acknowledgement ends what asks for one", message(nftables|unix.NFT_MSG_GETGEN, unix.NLM_F_ACK,
			unix.AF_UNSPEC, 0), 1, nil},
		{"a dump has an end", tables(), 3, nil},
		{"a dump of nothing", message(nftables|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_IPV6, 0), 0, nil},
		{"a refusal", message(nftables|unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_IPV4, 0, unix.NFTA_TABLE_NAME, "missing"),
			0, unix.ENOENT},
		{"an unknown subsystem", message(200<<8, 0, unix.AF_UNSPEC, 0), 0, unix.EINVAL},
	} {
		if n, err := count(c, t.Context(), q.request); n != q.n || !errors.Is(err, q.want) {
			t.Errorf("%s: %d messages, %v; want %d, %v", q.what, n, err, q.n, q.want)
		}
	}
	if now := port(t, c); now != before {
		t.Errorf("the socket was replaced: port %d, before %d", now, before)
	}
}

// Connections share nothing: two families' planes use them concurrently. The race detector would
// find shared data.
func TestTogether(t *testing.T) {
	netlab.EnterForTest(t)
	var all sync.WaitGroup
	for range 2 {
		c, err := Open(Config{Protocol: unix.NETLINK_NETFILTER})
		must(t, err)
		defer c.Close()
		all.Go(func() {
			for range 20 {
				if err := c.Do(t.Context(), generation(), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// One system call may read several datagrams: none is lost, and none is left for the next request.
func TestReadAtOnce(t *testing.T) {
	for _, atOnce := range []int{1, 3, 16} {
		c := netfilter(t)
		c.ReadAtOnce(atOnce)
		var messages []byte
		for range 10 {
			messages = append(messages, unanswered(unix.NLM_F_ACK)...)
		}
		calls, outcomes := 0, 0
		receive := c.receiving
		c.receiving = func(fd uintptr) bool { calls++; return receive(fd) }
		if err := c.Each(t.Context(), messages, func(_ int, err error) {
			outcomes++
			if err != nil {
				t.Error(err)
			}
		}); err != nil || outcomes != 10 {
			t.Errorf("%d at once: %d outcomes, %v; want 10", atOnce, outcomes, err)
		}
		if want := (10+atOnce-1)/atOnce + 1; calls != want { // one call finds no old datagram
			t.Errorf("%d at once: %d system calls, want %d", atOnce, calls, want)
		}
		batch(t, c, "a", "b", "c")
		if n, err := count(c, t.Context(), tables()); n != 3 || err != nil {
			t.Errorf("%d at once: then %d tables, %v; want 3", atOnce, n, err)
		}
	}
}

// The error has the kernel's text about a refusal, and its position.
func TestRefusal(t *testing.T) {
	c := netfilter(t)
	err := c.Do(t.Context(), message(nftables|unix.NFT_MSG_GETCHAIN, 0, unix.NFPROTO_IPV4, 0, unix.NFTA_CHAIN_TABLE,
		"missing", unix.NFTA_CHAIN_NAME, "x"), nil)
	var e *Error
	if !errors.As(err, &e) || e.Errno != unix.ENOENT || e.Seq != c.seq || e.Offset != 20 ||
		!strings.Contains(err.Error(), "byte 20") {
		t.Errorf("a chain of no table: %v, %+v", err, e)
	}
	route := openThere(t, Config{Protocol: unix.NETLINK_ROUTE})
	request := make([]byte, 20)
	binary.NativeEndian.PutUint32(request, 20)
	binary.NativeEndian.PutUint16(request[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST)
	if err := route.Do(t.Context(), request, nil); !errors.As(err, &e) || e.Text == "" ||
		!strings.Contains(err.Error(), e.Text) {
		t.Errorf("a question for a link without its header: %v", err)
	}
}

// If the callback fails, the remaining messages are still read.
func TestCallerFails(t *testing.T) {
	c := netfilter(t)
	batch(t, c, "a", "b", "c")
	before, stop, calls := port(t, c), errors.New("enough"), 0
	if err := c.Do(t.Context(), tables(), func(Message) error { calls++; return stop }); err != stop || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if n, err := count(c, t.Context(), tables()); n != 3 || err != nil {
		t.Errorf("then %d tables, %v", n, err)
	}
	if port(t, c) != before {
		t.Error("the socket was replaced")
	}
}

// The client waits for a silent kernel until Timeout has passed, or the context ends. Timeout is
// an hour in the second case, to show that the context ends the wait.
func TestNoAnswer(t *testing.T) {
	for _, how := range []struct {
		what    string
		silence func(t *testing.T, c *Conn) []byte
	}{
		{"a message that is not answered", func(*testing.T, *Conn) []byte { return unanswered(0) }},
		{"a dump that is not answered", func(*testing.T, *Conn) []byte { return unanswered(unix.NLM_F_DUMP) }},
		{"answers that are lost", func(t *testing.T, c *Conn) []byte { deafen(t, c); return generation() }},
		{"a dump that is lost", func(t *testing.T, c *Conn) []byte { deafen(t, c); return tables() }},
	} {
		t.Run(how.what, func(t *testing.T) {
			c := netfilter(t)
			batch(t, c, "a", "b")
			c.Timeout = 20 * time.Millisecond
			before := port(t, c)
			if err := c.Do(t.Context(), how.silence(t, c), nil); !errors.Is(err, ErrNoAnswer) ||
				!errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the timeout ends: %v", err)
			}
			expectFresh(t, c, before, 2)
			c.Timeout, before = time.Hour, port(t, c) // so that the context ends the wait
			request := how.silence(t, c)
			ctx := endsWhenAwaited(t)
			if err := c.Do(ctx, request, nil); !errors.Is(err, ErrNoAnswer) || !errors.Is(err, context.Canceled) {
				t.Errorf("the context ends: %v", err)
			}
			if err := c.Do(ctx, request, nil); err != context.Canceled {
				t.Errorf("a request after that: %v", err)
			}
			expectFresh(t, c, before, 2)
		})
	}
}

// The context ends in the middle of a dump. The kernel would answer EBUSY to the next on the same
// socket.
func TestDumpLeftInTheMiddle(t *testing.T) {
	c := netfilter(t)
	var names []string
	for i := range 2000 { // more than one part
		names = append(names, fmt.Sprintf("table-%04d", i))
	}
	batch(t, c, names...)
	before := port(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Do(ctx, tables(), func(Message) error { cancel(); return nil }); !errors.Is(err, context.Canceled) ||
		!errors.Is(err, ErrNoAnswer) {
		t.Errorf("left in the middle: %v", err)
	}
	expectFresh(t, c, before, len(names))
}

// Late answers to abandoned requests are not taken for those of the next.
func TestLateAnswers(t *testing.T) {
	c := netfilter(t)
	batch(t, c, "a", "b", "c")
	for range 3 {
		late := generation()
		binary.NativeEndian.PutUint32(late[8:], c.Next())
		must(t, c.transmit(t.Context(), false,
			append(late, message(200<<8, 0, unix.AF_UNSPEC, c.Next())...)))
	}
	if n, err := count(c, t.Context(), tables()); n != 3 || err != nil {
		t.Errorf("%d tables, %v", n, err)
	}
	must(t, c.transmit(t.Context(), false, message(nftables|unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_IPV4, 1,
		unix.NFTA_TABLE_NAME, "missing")))
	batch(t, c, "d") // its message has the number 1 too
}

func TestBatch(t *testing.T) {
	c := netfilter(t)
	batch(t, c, "a")
	bufs, last := addTables("b", "a", "a")
	var e *Error
	if err := c.Batch(t.Context(), bufs, last); !errors.As(err, &e) || e.Errno != unix.EEXIST || e.Seq != 2 {
		t.Errorf("a transaction whose second message is refused: %v, %+v", err, e)
	}
	if n, err := count(c, t.Context(), tables()); n != 1 || err != nil {
		t.Errorf("%d tables, %v; want that of before", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	bufs, last = addTables("b")
	if err := c.Batch(ctx, bufs, last); err != context.Canceled {
		t.Errorf("a context that has ended: %v", err)
	}
	if n, err := count(c, t.Context(), tables()); n != 1 || err != nil {
		t.Errorf("%d tables, %v; want that of before", n, err)
	}
	// The answer to a batch is never read. The kernel has done it.
	c.Timeout = time.Hour
	before := port(t, c)
	deafen(t, c)
	if err := c.Batch(t.Context(), bufs, last); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("without an answer: %v", err)
	}
	expectFresh(t, c, before, 2)
}

// An answer that does not fit the buffer.
func TestNoRoom(t *testing.T) {
	c := netfilter(t)
	must(t, c.SetReceiveBuffer(1)) // the minimum
	var many []byte
	for range 500 {
		many = append(many, message(200<<8, 0, unix.AF_UNSPEC, c.Next())...)
	}
	before := port(t, c)
	must(t, c.transmit(t.Context(), false, many))
	if err := c.Do(t.Context(), generation(), nil); !errors.Is(err, unix.ENOBUFS) || !errors.Is(err, ErrNoAnswer) {
		t.Errorf("one request: %v", err)
	}
	expectFresh(t, c, before, 0)
	before = port(t, c)
	must(t, c.SetReceiveBuffer(1))
	bufs, last := addTables(slices.Repeat([]string{"a"}, 500)...)
	// The first error fits the buffer.
	if err := c.Batch(t.Context(), bufs, last); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a batch: %v", err)
	}
	if n, err := count(c, t.Context(), tables()); n != 0 || err != nil || port(t, c) != before {
		t.Errorf("then %d tables, %v, port %d; it was %d", n, err, port(t, c), before)
	}
}

// A socket with Keep is not replaced, and still answers the next request.
func TestKeep(t *testing.T) {
	c := openThere(t, Config{Protocol: unix.NETLINK_NETFILTER, Keep: true})
	c.Timeout = 20 * time.Millisecond
	before := port(t, c)
	if err := c.Do(t.Context(), unanswered(0), nil); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("no answer: %v", err)
	}
	if n, err := count(c, t.Context(), generation()); n != 1 || err != nil || port(t, c) != before {
		t.Errorf("then %d, %v, port %d; it was %d", n, err, port(t, c), before)
	}
}

func TestClosed(t *testing.T) {
	c := netfilter(t)
	c.broken = true
	c.Close()
	if err := c.Do(t.Context(), generation(), nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a request: %v", err)
	}
	bufs, last := addTables("a")
	if err := c.Batch(t.Context(), bufs, last); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a batch: %v", err)
	}
}

// A listener receives messages, and is called when some were lost; Close ends it.
func TestListen(t *testing.T) {
	n := netlab.NamespaceForTest(t)
	var c, writer *Conn
	var err error
	n.Do(func() {
		c, err = Open(Config{Protocol: unix.NETLINK_NETFILTER})
		if err == nil {
			writer, err = Open(Config{Protocol: unix.NETLINK_NETFILTER})
		}
	})
	must(t, err)
	defer writer.Close()
	must(t, c.Join(unix.NFNLGRP_NFTABLES))
	noticed, lost, done, held := make(chan uint16, 100), make(chan bool, 100), make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		c.Listen(func(m Message) {
			noticed <- m.Type
			if m.Type == nftables|unix.NFT_MSG_NEWGEN {
				<-held
			}
		}, func() { lost <- true })
	}()
	batch(t, writer, "a")
	if typ := <-noticed; typ != nftables|unix.NFT_MSG_NEWTABLE {
		t.Errorf("received %#x", typ)
	}
	<-noticed // the new generation; the listener then pauses
	must(t, c.SetReceiveBuffer(1))
	for i := range 50 {
		batch(t, writer, fmt.Sprintf("b-%d", i))
	}
	close(held)
	<-lost
	must(t, c.Leave(unix.NFNLGRP_NFTABLES))
	c.Close()
	<-done
}

// Answers allocate no memory for each message, and an answer that is there when the request returns
// needs no wait.
func TestMemory(t *testing.T) {
	c := netfilter(t)
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("table-%04d", i))
	}
	batch(t, c, names...)
	request, n := tables(), 0
	f := func(Message) error { n++; return nil }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	allocs := testing.AllocsPerRun(10, func() {
		if err := c.Do(ctx, request, f); err != nil {
			t.Error(err)
		}
	})
	if allocs > 0 || n != 11*len(names) {
		t.Errorf("%v allocations for %d messages", allocs, n/11)
	}
}

// Each reports the outcome of every message, also if answers are lost, and the next request is not
// affected.
func TestEach(t *testing.T) {
	c := netfilter(t)
	batch(t, c, "a")
	ask := func(names ...string) (all []byte) {
		for _, name := range names {
			all = append(all, message(nftables|unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, unix.NFPROTO_IPV4, 0,
				unix.NFTA_TABLE_NAME, name)...)
		}
		return all
	}
	each := func(ctx context.Context, messages []byte) (map[int]error, error) {
		got := map[int]error{}
		return got, c.Each(ctx, messages, func(i int, err error) {
			if _, twice := got[i]; twice {
				t.Errorf("message %d is reported twice", i)
			}
			got[i] = err
		})
	}
	must(t, c.transmit(t.Context(), false, message(nftables|unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, unix.NFPROTO_IPV4,
		1, unix.NFTA_TABLE_NAME, "missing"))) // its answer is unread
	got, err := each(t.Context(), ask("a", "missing", "a"))
	if err != nil || len(got) != 3 || got[0] != nil || !errors.Is(got[1], unix.ENOENT) || got[2] != nil {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := each(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("no messages: %v, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := each(ctx, ask("a")); err != context.Canceled || len(got) != 0 {
		t.Errorf("a context that has ended: %v, %v", got, err)
	}
	// The buffer holds only some answers.
	must(t, c.SetReceiveBuffer(1))
	before, known, unknown := port(t, c), 0, 0
	got, err = each(t.Context(), ask(slices.Repeat([]string{"missing"}, 50)...))
	for _, err := range got {
		switch {
		case errors.Is(err, unix.ENOENT):
			known++
		case errors.Is(err, ErrNoAnswer) && errors.Is(err, unix.ENOBUFS):
			unknown++
		}
	}
	if err != nil || known == 0 || unknown == 0 || known+unknown != 50 {
		t.Errorf("little room: %d answers, %d lost, %v", known, unknown, err)
	}
	expectFresh(t, c, before, 1)
	// No answer arrives.
	before = port(t, c)
	deafen(t, c)
	if got, err := each(t.Context(), ask("a", "a")); err != nil || !errors.Is(got[0], ErrNoAnswer) ||
		!errors.Is(got[1], ErrNoAnswer) {
		t.Errorf("a kernel that does not answer: %v, %v", got, err)
	}
	expectFresh(t, c, before, 1)
	messages := ask(slices.Repeat([]string{"a"}, 100)...)
	outcome := func(int, error) {}
	if n := testing.AllocsPerRun(10, func() {
		if err := c.Each(t.Context(), messages, outcome); err != nil {
			t.Error(err)
		}
	}); n > 5 {
		t.Errorf("100 messages make %v pieces of garbage", n)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
