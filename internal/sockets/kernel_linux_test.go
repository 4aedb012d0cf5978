package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/nlconntest"
)

// namespace is a network namespace that ends with the test.
type namespace struct{ *netlab.Namespace }

func newNamespace(t testing.TB) namespace {
	t.Helper()
	ns := namespace{netlab.NamespaceForTest(t)}
	ns.Do(func() {
		out, err := exec.Command("sh", "-ec", "ip link set lo up; ip addr add 192.0.2.1/32 dev lo; ip -6 addr add "+
			"2001:db8::1/128 dev lo nodad").CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return ns
}

// open opens sockets in the namespace: "tcp4 0.0.0.0:80", or for a UDP socket with a peer "udp4 a:1
// b:2". tcp6 is v6only, tcp6+4 is not.
func (ns namespace) open(t testing.TB, sockets ...string) {
	t.Helper()
	ns.Do(func() {
		for _, s := range sockets {
			f := strings.Fields(s)
			if err := openSocket(t, f[0], f[1:]...); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
	})
}

func openSocket(t testing.TB, network string, addr ...string) error {
	var lc net.ListenConfig
	if network == "tcp6+4" || network == "udp6+4" {
		network = network[:3]
	}
	switch {
	case strings.HasPrefix(network, "tcp"):
		l, err := lc.Listen(context.Background(), network, addr[0])
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
	case len(addr) == 1:
		c, err := lc.ListenPacket(context.Background(), network, addr[0])
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
	default:
		c, err := net.DialUDP(network, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr[0])),
			net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr[1])))
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
	}
	return nil
}

func text(list []socket) []string {
	var out []string
	for _, s := range list {
		line := s.addr.String()
		if s.v6only {
			line += " only"
		}
		if s.inode == 0 {
			line += " without an inode"
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// A kernel that does not answer blocks no caller forever.
func TestSilentKernel(t *testing.T) {
	newNamespace(t).Do(func() {
		d, err := openDiag()
		if err != nil {
			t.Error(err)
			return
		}
		defer d.close()
		nlconntest.Check(t, d.conn, func() {}, func(ctx context.Context) error {
			_, err := d.sockets(ctx, lb.TCP, 0)
			return err
		})
	})
}

// Sockets that wait for traffic are listed; connected ones are not, and a single port can be
// queried.
func TestKernelSockets(t *testing.T) {
	ns := newNamespace(t)
	ns.open(t, "tcp4 0.0.0.0:30080", "tcp4 192.0.2.1:30081", "tcp4 127.0.0.1:30085", "tcp6 [::]:30082",
		"tcp6+4 [::]:30083", "tcp6 [2001:db8::1]:30084",
		"udp4 0.0.0.0:30053", "udp4 192.0.2.1:30054 127.0.0.1:53", "udp6 [::]:30055", "udp6+4 [::]:30056")
	ns.Do(func() {
		for _, to := range []string{"127.0.0.1:30080", "[::1]:30083"} { // connections on the same port
			c, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				continue
			}
			defer c.Close()
		}
		d, err := openDiag()
		if err != nil {
			t.Error(err)
			return
		}
		defer d.close()
		for _, c := range []struct {
			proto lb.Proto
			port  uint16
			want  []string
		}{
			{lb.TCP, 0, []string{"0.0.0.0:30080", "127.0.0.1:30085", "192.0.2.1:30081", "[2001:db8::1]:30084 only",
				"[::]:30082 only", "[::]:30083"}},
			{lb.TCP, 30080, []string{"0.0.0.0:30080"}},
			{lb.TCP, 30083, []string{"[::]:30083"}},
			{lb.TCP, 30099, nil},
			{lb.UDP, 0, []string{"0.0.0.0:30053", "[::]:30055 only", "[::]:30056"}},
			{lb.UDP, 30056, []string{"[::]:30056"}},
			{lb.UDP, 30054, nil},
		} {
			got, err := d.sockets(t.Context(), c.proto, c.port)
			if err != nil || !slices.Equal(text(got), c.want) {
				t.Errorf("%v %d: %q, %v; want %q", c.proto, c.port, text(got), err, c.want)
			}
		}
		if got, err := d.sockets(t.Context(), lb.SCTP, 0); err != nil || len(got) != 0 {
			t.Errorf("SCTP: %v, %v", got, err)
		}
		all, err := d.sockets(t.Context(), lb.TCP, 0)
		if err != nil {
			t.Error(err)
		}
		// All of these are this process's.
		ours, err := d.ours()
		if err != nil {
			t.Error(err)
		}
		for _, s := range all {
			if _, own := ours[s.inode]; !own {
				t.Errorf("%v is not among our own sockets", s)
			}
		}
	})
}

// A message from the kernel that is cut off anywhere is no socket, or one that lacks attributes.
func TestParseMessage(t *testing.T) {
	whole := make([]byte, sizeofMessage, sizeofMessage+8)
	whole[0] = unix.AF_INET6
	whole[offPort], whole[offPort+1] = 0x75, 0x80
	whole = append(whole, 5, 0, attrV6Only, 0, 1, 0, 0, 0)
	if s, ok := parseMessage(whole, 0); !ok || !s.v6only || s.addr.String() != "[::]:30080" {
		t.Errorf("%+v, %v", s, ok)
	}
	for n := range whole {
		if s, ok := parseMessage(whole[:n], 0); ok != (n >= sizeofMessage) || ok && s.v6only != (n >= sizeofMessage+5) {
			t.Errorf("%d bytes: %+v, %v", n, s, ok)
		}
	}
	if _, ok := parseMessage(whole, 30081); ok {
		t.Error("another port than was asked for")
	}
}

// PN-60 with real programs: one that listens before the NodePort, one that starts later; and this
// process's own socket, which is not reported.
func TestPrograms(t *testing.T) {
	ns := newNamespace(t)
	ns.start(t, "tcp4", "0.0.0.0:30080")
	ns.open(t, "tcp4 0.0.0.0:30082")
	var mu sync.Mutex
	var reported []string
	var w *Watcher
	ns.Do(func() {
		var err error
		w, err = New(Config{Serves: notLoopback, Log: slog.New(slog.DiscardHandler), Collides: func(c Collision) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, fmt.Sprintf("%s %s %v", c.Service, strings.TrimPrefix(c.Key.String(),
				"nodeport:"), c.Listener))
		}, Local: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil }})
		if err != nil {
			t.Error(err)
		}
	})
	if w == nil {
		return
	}
	w.every, w.confirm = 20*time.Millisecond, 40*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	var changes []lb.Change
	for _, k := range []lb.Key{{Port: 30080, Proto: lb.TCP}, {Port: 30081, Proto: lb.UDP}, {Port: 30082, Proto: lb.TCP},
		{Port: 30083, Proto: lb.SCTP}} {
		changes = append(changes, lb.Change{Key: k, New: &lb.Frontend{Key: k, Kind: lb.NodePort, Service: "shop/web"}})
	}
	w.Observer(lb.IPv4).Applied(changes)
	wait := func(want ...string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			got := slices.Clone(reported)
			mu.Unlock()
			if slices.Equal(got, want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("told %q, want %q", got, want)
			}
		}
	}
	first := "shop/web 30080/tcp 0.0.0.0:30080"
	wait(first)
	stop := ns.start(t, "udp4", "0.0.0.0:30081")
	second := "shop/web 30081/udp 0.0.0.0:30081"
	wait(first, second)
	looks := func(n uint64) {
		for until := w.looks.Load() + n; w.looks.Load() < until; {
			time.Sleep(time.Millisecond)
		}
	}
	looks(5)
	wait(first, second)
	stop()
	looks(2) // the first may have begun before
	ns.start(t, "udp4", "0.0.0.0:30081")
	wait(first, second, second)

	ns.start(t, "tcp4", "0.0.0.0:2379")
	changes = nil
	for _, addr := range []string{"192.0.2.1", "192.0.2.9"} { // the node's own, and another node's
		k := lb.Key{Addr: netip.MustParseAddr(addr), Port: 2379, Proto: lb.TCP}
		changes = append(changes,
			lb.Change{Key: k, New: &lb.Frontend{Key: k, Kind: lb.ExternalIP, Service: "shop/ext"}})
	}
	w.Observer(lb.IPv4).Applied(changes)
	wait(first, second, second, "shop/ext 192.0.2.1:2379/tcp 0.0.0.0:2379")
}

// asListener makes this test binary listen on the given socket, as another program of the node.
const asListener = "SOCKETS_TEST_LISTEN"

func TestMain(m *testing.M) {
	network, addr, ok := strings.Cut(os.Getenv(asListener), " ")
	if !ok {
		os.Exit(m.Run())
	}
	if err := listenUntilEOF(network, addr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// listenUntilEOF prints a line when it listens, and ends with its standard input.
func listenUntilEOF(network, addr string) error {
	var socket io.Closer
	var err error
	if network == "udp4" {
		socket, err = net.ListenPacket(network, addr)
	} else {
		socket, err = net.Listen(network, addr)
	}
	if err != nil {
		return err
	}
	defer socket.Close()
	fmt.Println("listening")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// start has another process of the namespace listen, until the test or stop ends it.
func (ns namespace) start(t testing.TB, network, addr string) (stop func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asListener+"="+network+" "+addr)
	cmd.Stderr = os.Stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	var err error
	ns.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the program that listens on %s %s: %v", network, addr, err)
		}
	})
	t.Cleanup(stop)
	if _, err := fmt.Fscanln(stdout, new(string)); err != nil {
		t.Fatalf("the program that is to listen on %s %s: %v", network, addr, err)
	}
	return stop
}

// The cost of a check beside many listeners and connections.
func BenchmarkSockets(b *testing.B) {
	b.Run("all", func(b *testing.B) { benchmarkSockets(b, 0) })
	b.Run("one", func(b *testing.B) { benchmarkSockets(b, 20000) })
}

func benchmarkSockets(b *testing.B, port uint16) {
	ns := newNamespace(b)
	var open []string
	for i := range 500 {
		open = append(open, fmt.Sprintf("tcp4 127.0.0.1:%d", 20000+i))
	}
	ns.open(b, open...)
	ns.Do(func() {
		for i := range 2000 {
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", 20000+i%500))
			if err != nil {
				b.Error(err)
				return
			}
			b.Cleanup(func() { c.Close() })
		}
		d, err := openDiag()
		if err != nil {
			b.Error(err)
			return
		}
		defer d.close()
		for b.Loop() {
			if _, err := d.sockets(b.Context(), lb.TCP, port); err != nil {
				b.Error(err)
			}
		}
	})
}
