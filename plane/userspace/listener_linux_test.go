package userspace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// listenerLab is a node whose plane forwards TCP and UDP of one address, and a NodePort, to a
// server in pod1.
type listenerLab struct {
	*netlab.TestLab
	t     *testing.T
	kind  kind
	table *lb.Table
	vip   netip.Addr
	node  netip.Addr
	plane *Plane
}

// eachListenerLab runs a test for each packet filter and family.
func eachListenerLab(t *testing.T, kinds []kind, run func(t *testing.T, l *listenerLab)) {
	for _, k := range kinds {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			t.Run(k.name+"/"+f.String(), func(t *testing.T) {
				table, cluster, nodePort := planetest.Shop(f)
				l := &listenerLab{TestLab: netlab.ForTest(t, netlab.Options{NoNode2: true}), t: t, kind: k,
					table: table, vip: cluster.Addr(), node: nodePort.Addr()}
				pod, _ := netlab.HostByName("pod1")
				to := lb.Backend{Addr: netip.AddrPortFrom(pod.Addr(f == lb.IPv6), 8080), Local: true}
				row := func(k lb.Key, kind lb.Kind) *lb.Frontend {
					set := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: k.Proto, Scope: lb.Cluster},
						Backends: lb.BackendsOf(to)}
					return &lb.Frontend{Key: k, Service: "shop/web:http", Kind: kind,
						Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}
				}
				table.Replace(lb.Owner{Name: "shop/web"}, []*lb.Frontend{
					row(lb.Key{Addr: l.vip, Port: 80, Proto: lb.TCP}, lb.ClusterIP),
					row(lb.Key{Addr: l.vip, Port: 80, Proto: lb.UDP}, lb.ClusterIP),
					row(lb.Key{Port: nodePort.Port(), Proto: lb.TCP}, lb.NodePort)})
				l.Serve(netlab.TCP, 8080, "pod1")
				l.Serve(netlab.UDP, 8080, "pod1")
				l.begin()
				run(t, l)
			})
		}
	}
}

// begin starts a plane, and checks that it serves all clients, and counts each connection and
// session once.
func (l *listenerLab) begin() {
	l.t.Helper()
	l.On(netlab.Node1, func() {
		made, err := l.kind.plane(lb.FamilyOf(l.vip))
		if err != nil {
			l.t.Fatal(err)
		}
		l.plane = made.(*Plane)
		l.t.Cleanup(func() { made.(*Plane).Close() })
		if _, err := planetest.ResetAll(context.Background(), l.plane, l.table); err != nil {
			l.t.Fatal(err)
		}
	})
	for _, from := range []string{netlab.Client, netlab.Node1, "pod1"} {
		for _, p := range []netlab.Proto{netlab.TCP, netlab.UDP} {
			l.dial(from, p, netip.AddrPortFrom(l.vip, 80), nil)
		}
		l.dial(from, netlab.TCP, netip.AddrPortFrom(l.node, 30080), nil)
	}
	if l.plane.Counts() {
		planetest.WantCounted(l.t, l.plane, "three clients", map[string]uint64{"shop/web:http": 3 * 3})
	}
}

// dial expects an answer of pod1, or the error.
func (l *listenerLab) dial(from string, p netlab.Proto, to netip.AddrPort, want error) {
	l.t.Helper()
	r, err := l.Dial(from, p, to, netlab.DialOptions{})
	if !errors.Is(err, want) || err == nil && r.Server != "pod1" {
		l.t.Errorf("%s %s to %s: %q, %v, want %v", p, from, to, r.Server, err, want)
	}
}

// ports returns the ports of the listeners.
func (l *listenerLab) ports() (all []uint16) {
	for _, at := range l.listeners() {
		all = append(all, at.number)
	}
	return all
}

func (l *listenerLab) listeners() (all []port) {
	for _, s := range l.plane.services {
		for _, set := range s.sets {
			all = append(all, set.door.port())
		}
	}
	return all
}

const squatted = "KUBE_PROXY_TEST_SQUAT" // ports that the test's program takes

// An unprivileged process takes the ports of the listeners while no proxy runs. The rules redirect
// clients there, and the guard refuses them (TN-76). The next proxy serves them again, on other
// ports.
func TestPortsOfListenersTN76(t *testing.T) {
	kerneltest.Every(t)
	if ports := os.Getenv(squatted); ports != "" {
		squat(t, strings.Fields(ports))
		return
	}
	eachListenerLab(t, kinds[:2], func(t *testing.T, l *listenerLab) {
		ports := l.ports()
		if err := l.plane.Close(); err != nil {
			t.Fatal(err)
		}
		// The directory of the test's program is closed to others; this link is not.
		cmd := l.Command(netlab.Node1, "/proc/self/exe", "-test.run=^"+t.Name()[:strings.IndexByte(t.Name(), '/')]+"$")
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		cmd.Dir, cmd.Env = "/", []string{squatted + "=" + strings.Trim(fmt.Sprint(ports), "[]")}
		cmd.Stderr = os.Stderr
		said, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Close() })
		if line, err := bufio.NewReader(said).ReadString('\n'); line != "listening\n" {
			t.Fatalf("the other program: %q, %v", line, err)
		}
		for _, from := range []string{netlab.Client, netlab.Node1, "pod1"} {
			for _, p := range []netlab.Proto{netlab.TCP, netlab.UDP} {
				l.dial(from, p, netip.AddrPortFrom(l.vip, 80), netlab.ErrRefused)
			}
			l.dial(from, netlab.TCP, netip.AddrPortFrom(l.node, 30080), netlab.ErrRefused)
		}
		l.begin()
	})
}

// squat listens at ports without privileges, and answers.
func squat(t *testing.T, ports []string) {
	if os.Getuid() == 0 {
		t.Fatal("the program runs as root")
	}
	for _, word := range ports {
		port, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			fd, err := unix.Socket(unix.AF_INET6, typ, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range [][2]int{{unix.SOL_IP, unix.IP_TRANSPARENT}, {unix.SOL_IPV6, unix.IPV6_TRANSPARENT}} {
				if err := unix.SetsockoptInt(fd, o[0], o[1], 1); err != unix.EPERM {
					t.Fatalf("IP_TRANSPARENT: %v, want EPERM", err)
				}
			}
			if err := unix.Bind(fd, &unix.SockaddrInet6{Port: port}); err != nil {
				t.Fatalf("bind to %d: %v", port, err)
			}
			if typ == unix.SOCK_STREAM {
				if err := unix.Listen(fd, 8); err != nil {
					t.Fatal(err)
				}
			}
			go answer(fd, typ)
		}
	}
	fmt.Println("listening")
	select {} // until the test kills it
}

func answer(fd, typ int) {
	line := []byte("squatter 10.0.0.1:1 10.0.0.1:1\n")
	for {
		if typ == unix.SOCK_STREAM {
			if conn, _, err := unix.Accept(fd); err == nil {
				unix.Write(conn, line)
			}
		} else if _, from, err := unix.Recvfrom(fd, make([]byte, 64), 0); err == nil {
			unix.Sendto(fd, line, 0, from)
		}
	}
}

// Another program removes all rules, including the guard. A stranger that connects to a listener
// directly is reset before the proxy passes on a byte of the stranger or of an endpoint (TN-77).
func TestRulesFlushedTN77(t *testing.T) {
	eachListenerLab(t, kinds[:2], func(t *testing.T, l *listenerLab) {
		ports, before := l.ports(), l.plane.relay.Stats().TCP
		l.On(netlab.Node1, func() {
			if err := l.kind.wipe(lb.FamilyOf(l.vip)); err != nil {
				t.Fatal(err)
			}
		})
		for _, from := range []string{netlab.Client, netlab.Node1, "pod1"} {
			for _, at := range l.listeners() {
				if at.proto == lb.TCP {
					l.dial(from, netlab.TCP, netip.AddrPortFrom(l.node, at.number), netlab.ErrReset)
				}
			}
		}
		after := l.plane.relay.Stats().TCP
		if after.Accepted-before.Accepted != 3 || after.Refused-before.Refused != 3 { // a refused client has no backend
			t.Errorf("ports %v: %+v, before %+v", ports, after, before)
		}
	})
}

// A NodePort that equals the port of its own listener needs no translation; nftables serves it too.
func TestNodePortOfItsListener(t *testing.T) {
	eachListenerLab(t, kinds[:1], func(t *testing.T, l *listenerLab) {
		port := netip.AddrPort{}
		for _, at := range l.listeners() {
			if at.proto == lb.TCP {
				port = netip.AddrPortFrom(l.node, at.number)
			}
		}
		row := *l.table.Get(lb.Key{Port: 30080, Proto: lb.TCP})
		row.Key.Port = port.Port()
		l.On(netlab.Node1, func() {
			if _, err := l.plane.Apply(t.Context(), []lb.Change{{Key: row.Key, New: &row}}); err != nil {
				t.Fatal(err)
			}
		})
		for _, from := range []string{netlab.Client, netlab.Node1, "pod1"} {
			l.dial(from, netlab.TCP, port, nil)
		}
		l.On(netlab.Node1, func() {
			if _, err := l.plane.Apply(t.Context(), []lb.Change{{Key: row.Key, Old: &row}}); err != nil {
				t.Fatal(err)
			}
		})
		l.dial(netlab.Client, netlab.TCP, port, netlab.ErrRefused)
	})
}
