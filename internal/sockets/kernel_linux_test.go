package sockets

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

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
