package nlconntest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Silence makes the kernel keep all answers to a connection. It still carries out the requests. A
// socket that replaces the connection's receives answers again.
func Silence(t testing.TB, c *netlink.Conn) {
	t.Helper()
	_, err := c.Port() // of a socket that is not to be replaced at once
	if err == nil {
		err = c.Filter([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Check tests a user of a connection: a silent kernel blocks it for the timeout and no longer, and
// not after its context has ended; and it recovers. prepare is called before each case.
func Check(t *testing.T, c *netlink.Conn, prepare func(), ask func(context.Context) error) {
	t.Helper()
	recovers := func() {
		t.Helper()
		c.Timeout = netlink.Timeout
		prepare()
		if err := ask(t.Context()); err != nil {
			t.Errorf("a kernel that answers again: %v", err)
		}
	}
	prepare()
	Silence(t, c)
	c.Timeout = 20 * time.Millisecond
	if err := ask(t.Context()); !errors.Is(err, netlink.ErrNoAnswer) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the timeout ends: %v", err)
	}
	recovers()
	prepare()
	Silence(t, c)
	c.Timeout = time.Hour // so that it is the context that ends the wait
	if err := ask(EndsWhenAwaited(t)); !errors.Is(err, netlink.ErrNoAnswer) || !errors.Is(err, context.Canceled) {
		t.Errorf("the context ends: %v", err)
	}
	recovers()
}

// EndsWhenAwaited returns a context that ends when a goroutine begins to wait for its end.
func EndsWhenAwaited(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return awaited{ctx, cancel}
}

type awaited struct {
	context.Context
	cancel context.CancelFunc
}

func (a awaited) Done() <-chan struct{} {
	a.cancel()
	return a.Context.Done()
}
