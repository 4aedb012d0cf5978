package relay

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
)

func newRelay(t testing.TB, cfg Config) *Relay {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// withoutPipes makes a relay copy all bytes, as without a free descriptor for a pipe.
func withoutPipes(r *Relay) {
	done := make(chan struct{})
	r.conns.(*conns).each(func(l *loop) {
		l.pipes.budget = &Budget{}
		done <- struct{}{}
	})
	for range r.conns.(*conns).loops {
		<-done
	}
}

// Peers that do not read keep no more pipes than their listener's share; those of another listener
// still get some.
func TestTCPSlowReaders(t *testing.T) {
	r := newRelay(t, Config{Descriptors: NewBudget(400)})
	stop := make(chan struct{})
	var total atomic.Int64
	slow := listen(t, r, to(serve(t, func(c *net.TCPConn) {
		<-stop
		n, _ := io.Copy(io.Discard, c)
		total.Add(n)
	})))
	var sent int64
	for range 30 { // each would keep one of 25
		c := dial(t, slow.Addr())
		for chunk := make([]byte, 1<<20); ; {
			c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			n, err := c.Write(chunk)
			sent += int64(n)
			if err != nil {
				break
			}
		}
		c.SetDeadline(time.Now().Add(timeout))
		c.CloseWrite()
	}
	pipes := r.conns.(*conns).pipes
	if used := pipes.used.Load(); used > pipes.max*4/5+1 || used == 0 {
		t.Errorf("readers who do not read keep %d pipes of %d", used, pipes.max)
	}
	var other Share
	if !pipes.Take(&other, 1) {
		t.Error("no pipe is left for the clients of another listener")
	}
	pipes.Give(&other, 1)
	close(stop)
	eventually(t, "all bytes arrive", func() bool { return total.Load() == sent })
	eventually(t, "no pipe is in use", func() bool { return pipes.used.Load() == 0 })
}

// Without pipes every byte arrives too.
func TestTCPWithoutPipes(t *testing.T) {
	r := newRelay(t, Config{})
	withoutPipes(r)
	everyByte(t, r)
}

// Urgent bytes arrive at their place in the stream, and do not delay the following bytes.
func TestTCPUrgent(t *testing.T) {
	kerneltest.Every(t)
	r := newRelay(t, Config{})
	c := dial(t, listen(t, r, to(serve(t, echo))).Addr())
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	send := func(text string, flags int) {
		t.Helper()
		want.WriteString(text)
		if err := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte(text), flags, nil) }); err != nil {
			t.Fatal(err)
		}
	}
	// In pieces that arrive one by one, and all at once.
	for _, wait := range []bool{true, false} {
		for range 50 {
			send("plain", 0)
			send("u", unix.MSG_OOB)
			send("more", 0)
			send("several urgent", unix.MSG_OOB)
			if wait {
				got := make([]byte, want.Len())
				if _, err := io.ReadFull(c, got); err != nil || string(got) != want.String() {
					t.Fatalf("got %q, %v, want %q", got, err, want.String())
				}
				want.Reset()
			}
		}
	}
	c.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != want.String() || err != nil {
		t.Errorf("%d bytes came back of %d, or others: %v", len(got), want.Len(), err)
	}
}

// openFDs counts the process's open descriptors by kind.
func openFDs(t testing.TB) map[string]int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, name := range names {
		target, err := os.Readlink("/proc/self/fd/" + name.Name())
		if err == nil {
			kind, _, _ := strings.Cut(target, ":")
			all[kind]++
		}
	}
	return all
}

// For a redirected client, the local address is the one that it sent to, not that of the socket.
func TestTCPOriginalDst(t *testing.T) {
	kerneltest.Every(t)
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("the rules of this test need the nft program: ", err)
	}
	r := newRelay(t, Config{})
	for _, tc := range []struct{ family, listen, service string }{
		{"ip", "127.0.0.1:0", "192.0.2.7:80"}, {"ip", "0.0.0.0:0", "192.0.2.8:80"},
		{"ip6", "[::1]:0", "[2001:db8::7]:80"}, {"ip6", "[::]:0", "[2001:db8::8]:80"},
	} {
		b := to(serve(t, echo))
		l := listenAt(t, r, Listening{lb.TCP, netip.MustParseAddrPort(tc.listen)}, b)
		service := netip.MustParseAddrPort(tc.service)
		has(t, service.Addr())
		command(t, "nft", fmt.Sprintf("add table %[1]s relay; add chain %[1]s relay out { type nat hook output "+
			"priority -100; }; add rule %[1]s relay out %[1]s daddr %[2]s tcp dport %[3]d redirect to :%[4]d",
			tc.family, service.Addr(), service.Port(), l.Addr().Port()))
		c := dial(t, service)
		roundTrip(t, c)
		b.mu.Lock()
		if want := (Client{Addr: c.LocalAddr().(*net.TCPAddr).AddrPort(), Local: service}); len(b.clients) != 1 ||
			b.clients[0] != want {
			t.Errorf("listening at %s: the balancer's clients are %+v, want %+v", tc.listen, b.clients, want)
		}
		b.mu.Unlock()
	}
	command(t, "nft", "flush ruleset")
}

// has adds an address to the namespace of the tests.
func has(t *testing.T, a netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
		Flags: unix.IFA_F_NODAD}
	if err := netlink.AddrReplace(lo, addr); err != nil {
		t.Fatal(err)
	}
}
