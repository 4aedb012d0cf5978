//go:build linux

package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/test/tables"
)

// bench is a lab with a plane on node1, and a table.
type bench struct {
	*netlab.TestLab
	t      *testing.T
	f      lb.Family
	planes *planes
	plane  *Plane
	table  *lb.Table
	names  *strings.Replacer
}

// names4 and names6 are what a table's text calls addresses.
var (
	names4 = strings.NewReplacer("VIP", "10.96.0.10", "OTHER", "10.96.0.11", "NODE", "172.18.0.2", "LOCAL", "127.0.0.1",
		"pod1", "10.1.1.11", "pod2", "10.1.1.12", "PODS", "10.1.0.0/16")
	names6 = strings.NewReplacer("VIP", "[fd00:10:96::a]", "OTHER", "[fd00:10:96::b]", "NODE", "[fd00:18::2]", "LOCAL",
		"[::1]",
		"pod1", "[fd00:10:1:1::11]", "pod2", "[fd00:10:1:1::12]", "PODS", "fd00:10:1::/48")
)

const shop = `node nodeports ALL pods PODS
nodeport:30080/tcp shop/web:http nodeport
  anywhere balance shop/web:http/tcp/cluster masquerade
VIP:80/tcp shop/web:http clusterip
  pods     balance shop/web:http/tcp/cluster
  anywhere balance shop/web:http/tcp/cluster masquerade
VIP:53/udp shop/dns:dns clusterip
  anywhere balance shop/dns:dns/udp/cluster
OTHER:53/udp shop/other:dns clusterip
  anywhere balance shop/other:dns/udp/cluster
set shop/web:http/tcp/cluster
  pod1:8080 local
set shop/dns:dns/udp/cluster
  pod1:8080 local
set shop/other:dns/udp/cluster
  pod2:8080 local
`

// eachFamily runs a test in a lab of each family side by side, whose plane has the table shop. The
// test shares nothing between them.
func eachFamily(t *testing.T, test func(b *bench)) {
	t.Run("families", func(t *testing.T) {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				test(shopBench(t, f, nil))
			})
		}
	})
}

func eachFamilyWith(t *testing.T, with func(*Config), test func(b *bench)) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(f.String(), func(t *testing.T) { test(shopBench(t, f, with)) })
	}
}

func shopBench(t *testing.T, f lb.Family, with func(*Config)) *bench {
	b := newBench(t, f, with)
	b.Serve(netlab.TCP, 8080, "pod1", "pod2")
	b.Serve(netlab.UDP, 8080, "pod1", "pod2")
	b.On(netlab.Node1, func() { b.plane = b.newPlane() })
	t.Cleanup(func() {
		if err := b.plane.Close(); err != nil {
			t.Error(err)
		}
	})
	b.table = b.parse(shop)
	b.On(netlab.Node1, func() { b.reset(b.table) })
	return b
}

// must ends the test on an error.
func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func newBench(t *testing.T, f lb.Family, with func(*Config)) *bench {
	lab := netlab.ForTest(t, netlab.Options{Cgroup: true, NoNode2: true, NoClient: true})
	b := &bench{TestLab: lab, t: t, f: f, planes: &planes{bpffs: bpffs(t), with: with}, names: names4}
	if f == lb.IPv6 {
		b.names = names6
	}
	return b
}

// restart replaces the plane by one with another configuration, as a new process does.
func (b *bench) restart(with func(*Config)) {
	b.t.Helper()
	b.planes.with = with
	b.On(netlab.Node1, func() {
		b.must(b.plane.Close())
		b.plane = b.newPlane()
		b.reset(b.table)
	})
}

func (b *bench) newPlane() *Plane {
	b.t.Helper()
	p, err := b.planes.at(b.f, b.Cgroup(netlab.Node1))
	b.must(err)
	return p
}

func (b *bench) parse(text string) *lb.Table {
	b.t.Helper()
	text = strings.ReplaceAll(text, "ALL", b.f.Everywhere().String())
	table, err := tables.Parse(b.names.Replace(text))
	b.must(err)
	return table
}

func (b *bench) reset(table *lb.Table) {
	b.t.Helper()
	if _, err := planetest.ResetAll(context.Background(), checked{b.plane}, table); err != nil {
		b.t.Fatal(err)
	}
}

// noRules removes the rules of the packet path: what is served then, the programs serve.
func (b *bench) noRules() { b.nft("delete table") }

// nft has the program do something with the table of the packet path, or an object of it.
func (b *bench) nft(do string, objects ...string) (says string) {
	b.t.Helper()
	family := map[lb.Family]string{lb.IPv4: "ip", lb.IPv6: "ip6"}[b.f]
	args := slices.Concat(strings.Fields(do), []string{family, nftables.TableName}, objects)
	b.On(netlab.Node1, func() {
		out, err := exec.Command("nft", args...).CombinedOutput()
		if says = string(out); err != nil {
			b.t.Fatalf("nft %s: %v: %s", args, err, out)
		}
	})
	return says
}

func (b *bench) to(name string) netip.AddrPort {
	b.t.Helper()
	a, err := netip.ParseAddrPort(b.names.Replace(name))
	b.must(err)
	return a
}

// reaches expects an answer of the server, to a socket that keeps the address it connected to.
func (b *bench) reaches(from string, proto netlab.Proto, to, server string) {
	b.t.Helper()
	c, err := b.Open(from, proto, b.to(to), netlab.DialOptions{})
	if err != nil {
		b.t.Errorf("%s %s → %s: %v", proto, from, to, err)
		return
	}
	defer c.Close()
	if got := c.First().Server; got != server {
		b.t.Errorf("%s %s → %s: %s answered, want %s", proto, from, to, got, server)
	}
	if local := c.Local().Addr(); c.First().Seen.Addr() != local {
		b.t.Errorf("%s %s → %s: %s saw %s, want the client's own address %s",
			proto, from, to, server, c.First().Seen, local)
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// socket opens a socket in a host, which ends with the test. mapped is an IPv6 socket for addresses
// of IPv4.
func (b *bench) socket(host string, kind int, mapped bool) (fd int) {
	b.t.Helper()
	family := unix.AF_INET
	if mapped || b.f == lb.IPv6 {
		family = unix.AF_INET6
	}
	b.On(host, func() {
		var err error
		if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0); err != nil {
			b.t.Fatal(err)
		}
		wait := unix.Timeval{Sec: 5}
		b.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	})
	b.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// asks sends a datagram with an unconnected socket, and expects a reply of the server, "" for any,
// from the address that it sent to.
func (b *bench) asks(when string, fd int, to netip.AddrPort, server string) {
	b.t.Helper()
	if err := unix.Sendto(fd, []byte("hello\n"), 0, sockaddr(to)); err != nil {
		b.t.Fatalf("%s: send to %s: %v", when, to, err)
	}
	reply := make([]byte, 1500)
	n, from, err := receive(fd, reply)
	if err != nil || addrPort(from) != to || !strings.Contains(string(reply[:n]), server) {
		b.t.Errorf("%s: sent to %s: reply %q from %s, error %v; want one of %s", when, to, reply[:n],
			addrPort(from), err, server)
	}
}

// receive waits for what a socket receives. Signals of Go's scheduler interrupt a socket that has a
// time limit.
func receive(fd int, buf []byte) (n int, from unix.Sockaddr, err error) {
	for {
		if n, from, err = unix.Recvfrom(fd, buf, 0); err != unix.EINTR {
			return n, from, err
		}
	}
}

// hasPeer expects that getpeername answers the address.
func (b *bench) hasPeer(when string, fd int, want netip.AddrPort) {
	b.t.Helper()
	sa, err := unix.Getpeername(fd)
	if got := addrPort(sa); err != nil || got != want {
		b.t.Errorf("%s: peer %s, error %v; want %s", when, got, err, want)
	}
}

// TestSockets: without any rule of the packet path, sockets of pods and of the node meet endpoints.
func TestSockets(t *testing.T) {
	eachFamily(t, func(b *bench) {
		b.noRules()
		for name, prove := range map[string]func(*bench){
			"reach EB-05":         (*bench).reach,
			"peers EB-05":         (*bench).peers,
			"unconnected EB-06":   (*bench).unconnected,
			"mapped EB-07":        (*bench).mapped,
			"fast open EB-05":     (*bench).fastOpen,
			"passed socket EB-05": (*bench).passed,
		} {
			b.t.Run(name, func(t *testing.T) {
				one := *b
				one.t = t
				prove(&one)
			})
		}
	})
}

// reach: sockets of pods and of the node reach frontends (EB-05).
func (b *bench) reach() {
	for _, from := range []string{"pod3", netlab.Node1, "pod1"} { // pod1 meets itself
		b.reaches(from, netlab.TCP, "VIP:80", "pod1")
		b.reaches(from, netlab.UDP, "VIP:53", "pod1")
		b.reaches(from, netlab.TCP, "NODE:30080", "pod1")
	}
	b.reaches(netlab.Node1, netlab.TCP, "LOCAL:30080", "pod1")
	// The loopback of another host, and a host without programs.
	for from, to := range map[string]string{"pod3": "LOCAL:30080", "sink": "VIP:80"} {
		if r, err := b.Dial(from, netlab.TCP, b.to(to), netlab.DialOptions{}); err == nil {
			b.t.Errorf("%s → %s: %s answered", from, to, r.Server)
		}
	}
}

// peers: getpeername answers the address that a socket connected to, and nothing else (EB-05).
func (b *bench) peers() {
	tcp, udp := b.socket("pod3", unix.SOCK_STREAM, false), b.socket("pod3", unix.SOCK_DGRAM, false)
	for _, c := range []struct {
		fd int
		to string
	}{{tcp, "VIP:80"}, {udp, "VIP:53"}, {udp, "pod1:8080"}} { // a second connect() forgets the first
		b.must(unix.Connect(c.fd, sockaddr(b.to(c.to))))
		b.hasPeer("connected to "+c.to, c.fd, b.to(c.to))
	}
}

// unconnected: replies to an unconnected UDP socket come from the addresses that it sent to, and a
// destination keeps its endpoint (EB-06).
func (b *bench) unconnected() {
	fd := b.socket("pod3", unix.SOCK_DGRAM, false)
	for range 3 {
		b.asks("one Service", fd, b.to("VIP:53"), "pod1")
		b.asks("another Service", fd, b.to("OTHER:53"), "pod2")
	}
}

// mapped: an IPv6 socket reaches frontends of IPv4 by mapped addresses (EB-07).
func (b *bench) mapped() {
	if b.f == lb.IPv6 {
		return // it has no mapped addresses; the programs of IPv4 see the sockets of both
	}
	mapped := func(name string) netip.AddrPort {
		a := b.to(name)
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	fd := b.socket("pod3", unix.SOCK_STREAM, true)
	b.must(unix.Connect(fd, sockaddr(mapped("VIP:80"))))
	b.hasPeer("mapped", fd, mapped("VIP:80"))
	b.asks("mapped", b.socket("pod3", unix.SOCK_DGRAM, true), mapped("VIP:53"), "pod1")
}

// fastOpen: a TCP socket that connects by sending its first data meets an endpoint (EB-05).
func (b *bench) fastOpen() {
	fd := b.socket("pod3", unix.SOCK_STREAM, false)
	b.must(unix.Sendto(fd, []byte("hello\n"), unix.MSG_FASTOPEN, sockaddr(b.to("VIP:80"))))
	if _, _, err := receive(fd, make([]byte, 1500)); err != nil {
		b.t.Error(err)
	}
	b.hasPeer("fast open", fd, b.to("VIP:80"))
}

// passed: a socket counts as one of the namespace that opened it, whichever thread uses it (EB-05).
func (b *bench) passed() {
	pods, nodes := b.socket("pod3", unix.SOCK_STREAM, false), b.socket(netlab.Node1, unix.SOCK_STREAM, false)
	var errPod, errNode error
	b.On(netlab.Node1, func() { errPod = unix.Connect(pods, sockaddr(b.to("LOCAL:30080"))) })
	b.On("pod3", func() { errNode = unix.Connect(nodes, sockaddr(b.to("LOCAL:30080"))) })
	if !errors.Is(errPod, unix.ECONNREFUSED) || errNode != nil {
		b.t.Errorf("a pod's socket to its own loopback address: %v; the node's: %v", errPod, errNode)
	}
}

// TestRestart: a new process takes over what the old one left, writes nothing, and sockets stay as
// they are (EB-08).
func TestRestart(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		fd := b.socket("pod3", unix.SOCK_STREAM, false)
		b.must(unix.Connect(fd, sockaddr(b.to("VIP:80"))))
		traffic := b.Traffic(netlab.Way{From: "pod3", To: b.to("VIP:80")},
			netlab.Way{From: netlab.Node1, To: b.to("VIP:80")})
		b.restart(nil)
		if n := b.plane.kernel.writes; n != 0 {
			b.t.Errorf("wrote %d elements", n)
		}
		traffic.More()
		traffic.Stop()
		b.hasPeer("after a restart", fd, b.to("VIP:80"))
	})
}

// TestRemove: --cleanup detaches the programs and removes what is pinned, under traffic (EB-09).
func TestRemove(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		pins := b.plane.cfg.Pins
		if pinned, _ := filepath.Glob(pins + "/*/*"); len(pinned) < 15 {
			b.t.Fatalf("only %d objects are pinned: %v", len(pinned), pinned)
		}
		if n := attached(b.t, b.Cgroup(netlab.Node1)); n < 5 {
			b.t.Fatalf("only %d programs are attached", n)
		}
		traffic := b.Traffic(netlab.Way{From: "pod3", To: b.to("VIP:80")})
		b.On(netlab.Node1, func() { b.plane.forget() })
		if err := unpinFamily(pins, b.f); err != nil {
			b.t.Error(err)
		}
		traffic.More()
		traffic.Stop()
		if pinned, _ := filepath.Glob(pins + "/*"); len(pinned) != 0 {
			b.t.Errorf("left: %v", pinned)
		}
		if !eventually(func() bool { return attached(b.t, b.Cgroup(netlab.Node1)) == 0 }) {
			b.t.Error("programs are attached")
		}
	})
}

// attached returns the number of programs that are attached to a cgroup.
func attached(t testing.TB, cgroup string) (n int) {
	t.Helper()
	folder, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	for _, at := range []cilium.AttachType{cilium.AttachCGroupInet4Connect, cilium.AttachCGroupInet6Connect,
		cilium.AttachCGroupUDP4Sendmsg, cilium.AttachCGroupUDP6Sendmsg, cilium.AttachCGroupUDP4Recvmsg,
		cilium.AttachCGroupUDP6Recvmsg, cilium.AttachCgroupInet4GetPeername, cilium.AttachCgroupInet6GetPeername,
		cilium.AttachCGroupInet4PostBind, cilium.AttachCGroupInet6PostBind} {
		all, err := link.QueryPrograms(link.QueryOptions{Target: int(folder.Fd()), Attach: at})
		if err != nil {
			t.Fatalf("query the programs of %s: %v", cgroup, err)
		}
		n += len(all.Programs)
	}
	return n
}

// TestAudit: a detached program, a removed pin, and deleted and changed elements are found and
// repaired (EB-10).
func TestAudit(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(b *bench) {
		b.noRules()
		pins := filepath.Join(b.plane.cfg.Pins, strings.ToLower(b.f.String()))
		for name, damage := range map[string]func() error{
			"removed pin":     func() error { return os.Remove(filepath.Join(pins, "link_connect6")) },
			"detached":        func() error { return b.plane.detach("connect6") },
			"deleted backend": func() error { return b.plane.damage("backends") },
			"deleted slot":    func() error { return b.plane.damage("slots") },
			"deleted set":     func() error { return b.plane.damage("sets") },
			"deleted row":     func() error { return b.plane.damage("frontends") },
			"switched off":    func() error { return b.plane.damage("config") },
		} {
			if err := damage(); err != nil {
				b.t.Fatalf("%s: %v", name, err)
			}
			if n, err := b.plane.audit(); err != nil || n == 0 && name != "switched off" {
				b.t.Errorf("%s: repaired %d, error %v", name, n, err)
			}
			b.reaches("pod3", netlab.TCP, "VIP:80", "pod1")
			b.reaches("pod3", netlab.UDP, "VIP:53", "pod1")
		}
	})
}
