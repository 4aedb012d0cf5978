package unanswered

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/failover"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// node is a network namespace in which rules translate 10.96.x.y to 10.1.x.y, where nothing
// answers.
type node struct {
	*netlab.Namespace
	t     *testing.T
	watch *Watch

	mu   sync.Mutex
	seen map[netip.Addr]int // notices by the address of the endpoint
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Namespace: netlab.NamespaceForTest(t), t: t, watch: New(Config{Family: lb.IPv4}),
		seen: map[netip.Addr]int{}}
	for _, command := range []string{
		"ip link set lo up",
		"ip link add out type veth peer name in",
		"ip link set in up",
		"ip addr add 10.1.255.254/16 dev out",
		"ip link set out up arp off", // no packet waits for ARP
		"ip route add 10.96.0.0/16 dev out",
		"nft add table ip t",
		"nft add chain ip t out { type nat hook output priority -100 ; }",
		"nft add rule ip t out ip daddr 10.96.0.0/16 dnat ip prefix to ip daddr map { 10.96.0.0/16 : 10.1.0.0/16 }",
	} {
		n.run(strings.Fields(command)...)
	}
	ctx, stop := context.WithCancel(context.Background())
	var listener *netlink.Conn
	var err error
	n.Do(func() { listener, err = n.watch.open(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		n.watch.serve(ctx, listener, func(notice failover.Notice) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.seen[notice.Endpoint.Addr()]++
		})
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	return n
}

func (n *node) run(words ...string) (out string) {
	n.t.Helper()
	n.Do(func() {
		all, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		out = string(all)
		if err != nil {
			n.t.Errorf("%s: %v: %s", strings.Join(words, " "), err, all)
		}
	})
	return out
}

// address is address number i of a network of 65,536.
func address(network byte, i int) (a [4]byte) {
	a = [4]byte{10, network}
	binary.BigEndian.PutUint16(a[2:], uint16(i))
	return a
}

// connect begins to connect to a number of services, from number first on; the sockets stay open.
func (n *node) connect(first, count int) {
	n.t.Helper()
	n.Do(func() {
		for i := range count {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				n.t.Fatal(err)
			}
			n.t.Cleanup(func() { unix.Close(fd) })
			err = unix.Connect(fd, &unix.SockaddrInet4{Addr: address(96, first+i), Port: 80})
			if !errors.Is(err, unix.EINPROGRESS) {
				n.t.Fatal(err)
			}
		}
	})
}

// await waits for a notice about the endpoint of a service.
func (n *node) await(service int) {
	n.t.Helper()
	at := netip.AddrFrom4(address(1, service))
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n.mu.Lock()
		seen := n.seen[at]
		n.mu.Unlock()
		if seen > 0 {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("no notice about %s:\n%s", at, n.run("nft", "list", "table", "ip", TableName))
		}
	}
}

// TestManySilent: each of thousands of silent endpoints is reported, though one tenant has all but
// one, and none is reported more often than its rate (FO-16).
func TestManySilent(t *testing.T) {
	n := newNode(t)
	const many = 5000
	n.connect(1, many)
	n.connect(many+1, 1)
	for service := range many + 1 {
		n.await(service + 1)
	}
	n.connect(many+2, 1)
	for range 200 {
		n.connect(many+2, 1)
	}
	n.await(many + 2)
	time.Sleep(1200 * time.Millisecond)
	n.mu.Lock()
	defer n.mu.Unlock()
	if seen := n.seen[netip.AddrFrom4(address(1, many+2))]; seen > 2*burst+2*perSecond {
		t.Errorf("%d notices about an endpoint in little more than a second", seen)
	}
}

// TestRepair: rules that another program deleted come back with the next check (FO-17).
func TestRepair(t *testing.T) {
	n := newNode(t)
	for name, damage := range map[string]string{
		"the table":  "nft delete table ip " + TableName,
		"its rules":  "nft flush table ip " + TableName,
		"a chain":    "nft delete chain ip " + TableName + " watch-output",
		"no damage":  "true",
		"a new rule": "nft add rule ip " + TableName + " unanswered return",
	} {
		before := n.list()
		n.run(strings.Fields(damage)...)
		if err := n.watch.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after := n.list(); after != before {
			t.Errorf("after damage to %s:\n%s\nwant:\n%s", name, after, before)
		}
	}
}

func (n *node) list() string { return n.run("nft", "-t", "list", "table", "ip", TableName) }

// TestGroups: another program may have the first group of nfnetlink_log.
func TestGroups(t *testing.T) {
	n := newNode(t)
	n.Do(func() {
		listener, group, err := bind(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if group != firstGroup+1 {
			t.Errorf("group %d, want %d", group, firstGroup+1)
		}
	})
}

// TestOff: what ends waits needs a watch.
func TestOff(t *testing.T) {
	w := New(Config{Family: lb.IPv6})
	if _, err := w.Rescue(t.Context(), nil); !errors.Is(err, errOff) {
		t.Errorf("Rescue: %v", err)
	}
	if _, err := w.ResetConnections(t.Context(), nil); !errors.Is(err, errOff) {
		t.Errorf("ResetConnections: %v", err)
	}
}
