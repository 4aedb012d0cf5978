package relay

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
)

// A child that was forked meanwhile has all descriptors until its exec. A listener that is closed takes no new clients all the same: they would
// be taken by nobody, and be reset when the child lets go.
func TestTCPCloseBesideAFork(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	l := listen(t, r, to(serve(t, echo)))
	childs, err := unix.Dup(l.socket.(*listening).fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(childs)
	l.Close()
	if c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(l.Addr())); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after Close: %v, %v, want a refusal", c, err)
	}
	// Nor does the child keep the address from who listens there next.
	again, err := r.Listen(Listening{lb.TCP, l.Addr()}, to(serve(t, echo)), nil)
	if err != nil {
		t.Fatalf("listen there again: %v", err)
	}
	roundTrip(t, dial(t, again.Addr()))
}
