package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
	"kube-proxy/test/nlconntest"
)

// namespace is a network namespace that ends with the test.
type namespace struct{ *netlab.Namespace }

func newNamespace(tb testing.TB) namespace {
	tb.Helper()
	return namespace{netlab.NamespaceForTest(tb)}
}

// sh runs commands, one a line, in the namespace.
func (ns namespace) sh(tb testing.TB, lines string) string {
	tb.Helper()
	var out []byte
	var err error
	ns.Do(func() { out, err = exec.Command("sh", "-ec", lines).CombinedOutput() })
	if err != nil {
		tb.Fatalf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

// nft replaces the rules of the namespace by a DNAT of each destination, "10.96.0.10 . udp . 53 :
// 10.1.0.1 . 5353".
func (ns namespace) nft(tb testing.TB, fam, addr string, elements ...string) {
	tb.Helper()
	rules := fmt.Sprintf(`flush ruleset
table %[1]s t {
	map m { type %[2]s . inet_proto . inet_service : %[2]s . inet_service; %[3]s }
	chain pre { type nat hook prerouting priority dstnat; meta l4proto { tcp, udp } dnat to %[1]s daddr . meta l4proto . th dport map @m; }
	chain seen { type filter hook forward priority 0; ct state new accept; }
}`, fam, addr, "")
	if len(elements) > 0 {
		rules = strings.Replace(rules, "inet_service;  }", "inet_service; elements = { "+strings.Join(elements, ", ")+
			" } }", 1)
	}
	ns.Do(func() {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			tb.Errorf("nft: %v\n%s\n%s", err, out, rules)
		}
	})
}

// answer starts a UDP server in the namespace that answers with its name.
func (ns namespace) answer(t *testing.T, at, name string) {
	t.Helper()
	ns.Do(func() {
		conn, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Errorf("listen: %v", err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		go func() {
			b := make([]byte, 100)
			for {
				_, peer, err := conn.ReadFrom(b)
				if err != nil {
					return
				}
				conn.WriteTo([]byte(name), peer)
			}
		}()
	})
}

// talk is a UDP client that keeps its port.
type talk struct{ net.Conn }

func (ns namespace) talk(t *testing.T, to string) talk {
	t.Helper()
	var conn net.Conn
	var err error
	ns.Do(func() { conn, err = net.Dial("udp", to) })
	if err != nil {
		t.Fatalf("dial %s: %v", to, err)
	}
	t.Cleanup(func() { conn.Close() })
	return talk{conn}
}

// ask sends one packet and returns the name of the server that answers within the time, "" without
// an answer.
func (c talk) ask(t *testing.T, timeout time.Duration) string {
	t.Helper()
	if _, err := c.Write([]byte("who?")); err != nil && !errors.Is(err, unix.ECONNREFUSED) &&
		!errors.Is(err, unix.EHOSTUNREACH) {
		t.Fatalf("send to %v: %v", c.RemoteAddr(), err)
	}
	c.SetReadDeadline(time.Now().Add(timeout))
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// network is a client and a node that forwards; the pods' addresses are the node's own.
func network(t *testing.T) (client, node namespace) {
	client, node = newNamespace(t), newNamespace(t)
	client.sh(t, "ip link set lo up; ip link add uplink type veth peer name inside netns "+strconv.Itoa(node.TID))
	node.sh(t, `ip link set lo up; cd /proc/sys/net; echo 1 >ipv4/ip_forward; echo 1 >ipv6/conf/all/forwarding
		ip link set inside up; ip addr add 192.0.2.1/24 dev inside; ip addr add 2001:db8::1/64 dev inside nodad
		for i in 1 2 3; do ip addr add 10.1.0.$i/32 dev lo; ip addr add 2001:db8:1::$i/128 dev lo nodad; done
		ip link add away type veth peer name nowhere; ip link set away arp off up; ip link set nowhere up; ip route add default dev away
		ip -6 route add default dev away`)
	client.sh(t,
		`ip link set uplink up; ip addr add 192.0.2.7/24 dev uplink; ip addr add 2001:db8::7/64 dev uplink nodad
		ip route add default via 192.0.2.1; ip -6 route add default via 2001:db8::1`)
	// Without ARP no neighbour fails, and no ICMP ends an attempt to connect after 3 s.
	// Links and neighbours take some time. Without rules the table has no entries yet.
	for _, at := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		node.answer(t, at, "here")
		c := client.talk(t, at)
		for end := time.Now().Add(10 * time.Second); c.ask(t, 300*time.Millisecond) != "here"; {
			if time.Now().After(end) {
				t.Fatalf("%s does not answer", at)
			}
		}
	}
	return client, node
}

// watched is a Cleaner whose passes and deletions are counted.
type watched struct {
	*Cleaner
	passes, deleted atomic.Int64
}

// cleaner makes a Cleaner in the namespace that works until the test ends.
func (ns namespace) cleaner(t *testing.T, family lb.Family) *watched {
	t.Helper()
	c, err := &watched{}, error(nil)
	cleaned := func(p Pass) {
		c.deleted.Add(int64(p.Deleted))
		c.passes.Add(1)
	}
	cfg := Config{Family: family, Cleaned: cleaned, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	ns.Do(func() { c.Cleaner, err = New(cfg) })
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { c.Run(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	return c
}

// settle waits until the Cleaner has finished so many passes.
func settle(t *testing.T, c *watched, passes int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); c.passes.Load() < passes; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no pass %d: %d", passes, c.passes.Load())
		}
	}
}

// table opens the namespace's conntrack table.
func (ns namespace) table(tb testing.TB, family lb.Family) *table {
	tb.Helper()
	var t *table
	var err error
	ns.Do(func() { t, err = openTable(family) })
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(t.close)
	return t
}

// flows lists the entries of the namespace's table: "udp 10.96.0.10:53 10.1.0.1:5353".
func (ns namespace) flows(t *testing.T, family lb.Family, protos ...lb.Proto) []string {
	t.Helper()
	table := ns.table(t, family)
	var all []string
	for _, proto := range protos {
		request := conntrack.DumpRequest(table.family, conntrack.Tuple{Proto: uint8(proto)}, conntrack.ByProto)
		err := table.dumps.Do(t.Context(), request, func(m netlink.Message) error {
			var e conntrack.Entry
			if e.Parse(m.Body) {
				all = append(all, fmt.Sprintf("%v %v %v", proto, e.Orig.To, e.Reply.From))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func expectFlows(t *testing.T, ns namespace, family lb.Family, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := ns.flows(t, family, lb.UDP, lb.TCP, lb.SCTP); !slices.Equal(got, want) {
		t.Errorf("flows:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func expectAnswer(t *testing.T, c talk, want string) {
	t.Helper()
	timeout := 20 * time.Second // a busy machine is no failure
	if want == "" {
		timeout = 300 * time.Millisecond
	}
	if got := c.ask(t, timeout); got != want {
		t.Errorf("%v answers as %q, want %q", c.RemoteAddr(), got, want)
	}
}

// DP-50, DP-52, PN-01, PN-06: the flow to a backend that left moves to one that serves. Flows to
// the same address and another port, to another service on the same backend, and over TCP stay. So
// do flows to an address that another server has, whether a frontend claims or releases it (TN-81).
func TestBackendLeaves(t *testing.T) {
	const claimed = "192.0.2.1:9"
	client, node := network(t)
	node.answer(t, "10.1.0.1:5353", "A")
	node.answer(t, "10.1.0.2:5353", "B")
	rules := []string{"10.96.0.10 . udp . 54 : 10.1.0.1 . 5353", "10.96.0.11 . udp . 53 : 10.1.0.1 . 5353",
		"10.96.0.10 . tcp . 53 : 10.1.0.1 . 5353"}
	node.nft(t, "ip", "ipv4_addr", append(rules, "10.96.0.10 . udp . 53 : 10.1.0.1 . 5353")...)
	var tcp net.Conn
	node.Do(func() {
		l, err := net.Listen("tcp", "10.1.0.1:5353")
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			if c, err := l.Accept(); err == nil {
				io.Copy(c, c)
			}
		}()
	})
	client.Do(func() {
		var err error
		tcp, err = net.DialTimeout("tcp", "10.96.0.10:53", 5*time.Second)
		if err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	defer tcp.Close()
	moved, port, other := client.talk(t, "10.96.0.10:53"), client.talk(t, "10.96.0.10:54"),
		client.talk(t, "10.96.0.11:53")
	for _, c := range []talk{moved, port, other} {
		expectAnswer(t, c, "A")
	}
	expectAnswer(t, client.talk(t, claimed), "here")
	c := node.cleaner(t, lb.IPv4)
	rows := []lb.Change{set(row(vip, service, lb.Cluster, podA)),
		set(row("10.96.0.10:54/udp", "dns/dns:alt", lb.Cluster, podA)),
		set(row("10.96.0.11:53/udp", "other/x:x", lb.Cluster, podA)),
		set(row("10.96.0.10:53/tcp", service, lb.Cluster, podA)),
		set(row(claimed+"/udp", "tenant/x:x", lb.Cluster, podA))}
	c.Applied(rows)
	settle(t, c, 2) // one of UDP, one of TCP
	all := []string{"tcp 10.96.0.10:53 10.1.0.1:5353", "udp 10.96.0.10:53 10.1.0.1:5353",
		"udp 10.96.0.10:54 10.1.0.1:5353", "udp 10.96.0.11:53 10.1.0.1:5353", "udp 192.0.2.1:9 192.0.2.1:9"}
	expectFlows(t, node, lb.IPv4, all...)

	node.nft(t, "ip", "ipv4_addr", append(rules, "10.96.0.10 . udp . 53 : 10.1.0.2 . 5353")...)
	expectAnswer(t, moved, "A") // the trouble that all this is about
	c.Applied([]lb.Change{set(row(vip, service, lb.Cluster, podB)),
		set(row("10.96.0.10:53/tcp", service, lb.Cluster, podB)), remove(claimed + "/udp")})
	settle(t, c, 3)
	expectFlows(t, node, lb.IPv4, all[0], all[2], all[3], all[4])
	expectAnswer(t, moved, "B")
	expectAnswer(t, port, "A")
	expectAnswer(t, other, "A")
	if n := c.deleted.Load(); n != 1 {
		t.Errorf("deleted %d entries, want one", n)
	}
}

// TN-82: a connection attempt that began before its Service was served succeeds at its next
// retransmission.
func TestFirstConnectionTN82(t *testing.T) {
	client, node := network(t)
	node.Do(func() {
		l, err := net.Listen("tcp", "10.1.0.1:5353")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	})
	node.nft(t, "ip", "ipv4_addr")
	c := node.cleaner(t, lb.IPv4)
	connected := make(chan error, 1)
	client.Do(func() {
		d := net.Dialer{Timeout: time.Minute}
		go func() {
			client.Do(func() {
				conn, err := d.Dial("tcp", "10.96.0.10:53")
				if err == nil {
					conn.Close()
				}
				connected <- err
			})
		}()
	})
	for deadline := time.Now().Add(10 * time.Second); !slices.Contains(node.flows(t, lb.IPv4, lb.TCP),
		"tcp 10.96.0.10:53 10.96.0.10:53"); {
		if time.Now().After(deadline) {
			t.Fatal("the attempt is not in the conntrack table")
		}
		time.Sleep(10 * time.Millisecond)
	}
	node.nft(t, "ip", "ipv4_addr", "10.96.0.10 . tcp . 53 : 10.1.0.1 . 5353")
	c.Applied([]lb.Change{set(row("10.96.0.10:53/tcp", service, lb.Cluster, podA))})
	settle(t, c, 1)
	if err := <-connected; err != nil {
		t.Errorf("the retransmission missed the Service: %v", err)
	}
}

// families are the addresses of tests that run in both.
var families = []struct {
	family                     lb.Family
	nft, typ                   string
	node, other, podA, podB, x string
}{
	{lb.IPv4, "ip", "ipv4_addr", "192.0.2.1", "192.0.2.100", "10.1.0.1", "10.1.0.2", "10.1.0.3"},
	{lb.IPv6, "ip6", "ipv6_addr", "2001:db8::1", "2001:db8::100", "2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3"},
}

// Another program's hostPort has the number of a NodePort, on an address of the node that answers
// no NodePorts: its flows are not ours, whatever happens to the NodePort. Flows through the
// NodePort itself are deleted as usual, and the rest when its address stops answering NodePorts.
// Flows to an address that begins to answer them are ours from then on (DP-26).
func TestOtherAddressesOfTheNode(t *testing.T) {
	for _, c := range families {
		t.Run(c.family.String(), func(t *testing.T) {
			client, node := network(t)
			node.sh(t, "ip addr add "+c.other+" dev inside nodad")
			a, b := net.JoinHostPort(c.podA, "5353"), net.JoinHostPort(c.podB, "5353")
			node.answer(t, a, "A")
			node.answer(t, b, "B")
			node.answer(t, net.JoinHostPort(c.x, "99"), "stranger")
			const nodePort = "nodeport:30053/udp"
			rules := func(nodePorts, pod string) {
				hostPort := c.node
				if nodePorts == c.node {
					hostPort = c.other
				}
				node.nft(t, c.nft, c.typ, nodePorts+" . udp . 30053 : "+pod+" . 5353", hostPort+" . udp . 30053 : "+c.x+
					" . 99")
			}
			answers := func(addr string) lb.Node {
				p := netip.MustParseAddr(addr)
				return lb.Node{NodePorts: []netip.Prefix{netip.PrefixFrom(p, p.BitLen())}}
			}
			list := func(pairs ...string) (want []string) {
				for i := 0; i < len(pairs); i += 2 {
					want = append(want, fmt.Sprintf("udp %s %s", net.JoinHostPort(pairs[i], "30053"), pairs[i+1]))
				}
				return want
			}
			stranger := net.JoinHostPort(c.x, "99")
			ours, theirs := client.talk(t, net.JoinHostPort(c.node, "30053")),
				client.talk(t, net.JoinHostPort(c.other, "30053"))

			cleaner := node.cleaner(t, c.family)
			rules(c.node, c.podA)
			cleaner.NodeApplied(answers(c.node))
			cleaner.Applied([]lb.Change{set(row(nodePort, service, lb.Cluster, a))})
			settle(t, cleaner, 1)
			expectAnswer(t, ours, "A")
			expectAnswer(t, theirs, "stranger")

			rules(c.node, c.podB) // the backend leaves
			cleaner.Applied([]lb.Change{set(row(nodePort, service, lb.Cluster, b))})
			settle(t, cleaner, 2)
			expectFlows(t, node, c.family, list(c.other, stranger)...)
			expectAnswer(t, ours, "B")

			cleaner.NodeApplied(answers(c.node)) // changes nothing
			cleaner.Applied([]lb.Change{remove(nodePort)})
			settle(t, cleaner, 3)
			expectFlows(t, node, c.family, list(c.other, stranger)...)

			cleaner.Applied([]lb.Change{set(row(nodePort, service, lb.Cluster, b))})
			settle(t, cleaner, 4)
			expectAnswer(t, ours, "B")
			expectFlows(t, node, c.family, list(c.other, stranger, c.node, b)...)
			rules(c.other, c.podB) // the node's address changes
			cleaner.NodeApplied(answers(c.other))
			settle(t, cleaner, 5)
			expectFlows(t, node, c.family)
			expectAnswer(t, ours, "stranger")
			expectAnswer(t, theirs, "B")
		})
	}
}

// inject puts entries into the table without sending packets.
func (ns namespace) inject(tb testing.TB, n int, entry func(i int) (client, to, from netip.AddrPort, proto lb.Proto)) {
	tb.Helper()
	var err error
	ns.Do(func() {
		err = conntrack.Fill(context.Background(), n, func(i int) conntrack.Entry {
			client, to, from, proto := entry(i)
			return conntrack.Entry{Orig: conntrack.Tuple{From: client, To: to, Proto: uint8(proto)},
				Reply:  conntrack.Tuple{From: from, To: client, Proto: uint8(proto)},
				Status: conntrack.SeenReply | conntrack.Assured, Timeout: 600}
		})
	})
	if err != nil {
		tb.Fatal(err)
	}
}

func clientN(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(i >> 14), byte(i >> 6)}), uint16(1024+i&63))
}

// DP-54: SCTP entries, which this machine may have no way to make with packets.
func TestSCTP(t *testing.T) {
	ns := newNamespace(t)
	ns.inject(t, 2, func(i int) (client, to, from netip.AddrPort, proto lb.Proto) {
		return clientN(i), dns, netip.MustParseAddrPort([]string{podA, podB}[i]), lb.SCTP
	})
	c := ns.cleaner(t, lb.IPv4)
	c.Applied([]lb.Change{set(row("10.96.0.10:53/sctp", service, lb.Cluster, podB))})
	settle(t, c, 1)
	expectFlows(t, ns, lb.IPv4, "sctp 10.96.0.10:53 10.1.0.2:5353")
}

// The kernel leaves other protocols out of the dump (since 5.8), a batch of deletes names each
// entry, and one that no longer exists is no error.
func TestDumpAndDelete(t *testing.T) {
	ns := newNamespace(t)
	const n = 3*batch + 7
	ns.inject(t, 2*n, func(i int) (client, to, from netip.AddrPort, proto lb.Proto) {
		if i >= n {
			return clientN(i), dns, podAP, lb.TCP
		}
		return clientN(i), dns, netip.AddrPortFrom(netip.MustParseAddr("10.1.0.1"), uint16(5000+i%2)), lb.UDP
	})
	table, other := ns.table(t, lb.IPv4), ns.table(t, lb.IPv4)

	messages := 0
	if err := table.dumps.Do(t.Context(), conntrack.DumpRequest(table.family, conntrack.Tuple{Proto: uint8(lb.UDP)},
		conntrack.ByProto), func(netlink.Message) error {
		messages++
		return nil
	}); err != nil || messages != n {
		t.Errorf("the kernel sent %d entries, want the %d of UDP: %v", messages, n, err)
	}

	failed := func(k lb.Key, err error) { t.Errorf("%v: %v", k, err) }
	odd := func(f flow) (lb.Key, bool) { return lb.Key{}, f.from.Port() == 5001 }
	raced := false
	got, err := table.forget(t.Context(), lb.UDP, func(f flow) (lb.Key, bool) {
		if !raced { // another process deletes the same entries while this pass reads
			raced = true
			if n, err := other.forget(t.Context(), lb.UDP, odd, failed); err != nil || n.deleted != 195 {
				t.Errorf("the other deleted %+v, %v", n, err)
			}
			if len(other.keys) != 0 || len(other.pending) != 0 {
				t.Errorf("%d deletes would be sent again", len(other.keys))
			}
		}
		return odd(f)
	}, failed)
	if err != nil || got.deleted != 0 {
		t.Errorf("deleted %+v, %v; want none, for the other was first", got, err)
	}
	if n := len(ns.flows(t, lb.IPv4, lb.UDP)); n != 1 {
		t.Errorf("%d kinds of UDP flows stay, want one", n)
	}
	// All TCP entries have been answered: kernels since 5.17 leave them out.
	answered, sent := 0, 0
	err = table.dumps.Do(t.Context(), conntrack.DumpRequest(table.family, conntrack.Tuple{Proto: uint8(lb.TCP)},
		conntrack.ByProto|conntrack.ByNoReply), func(netlink.Message) error {
		sent++
		return nil
	})
	if err != nil || sent != 0 && sent != n {
		t.Errorf("the kernel sent %d unanswered entries, want 0, or all %d: %v", sent, n, err)
	}
	got, err = table.forget(t.Context(), lb.TCP, func(f flow) (lb.Key, bool) {
		if f.replied {
			answered++
		}
		return lb.Key{}, false
	}, failed)
	if err != nil || got.seen != answered || got.seen != sent {
		t.Errorf("TCP entries seen %d, answered %d, want %d: %v", got.seen, answered, sent, err)
	}
}

// DP-52 PN-06: a pass takes the same memory for any number of entries.
func TestPassMemory(t *testing.T) {
	const n = 5000
	ns := newNamespace(t)
	ns.inject(t, n, func(i int) (client, to, from netip.AddrPort, proto lb.Proto) {
		return clientN(i), dns, podAP, lb.UDP
	})
	table := ns.table(t, lb.IPv4)
	x := newIndex(nil)
	x.apply(set(row(vip, service, lb.Cluster, podA)))
	p := x.take(flows, nil)
	if allocs := testing.AllocsPerRun(5, func() {
		if got, err := table.forget(t.Context(), lb.UDP, p.stale, nil); err != nil || got.seen != n {
			t.Errorf("%+v, %v", got, err)
		}
	}); allocs > 20 {
		t.Errorf("%v allocations for %d entries", allocs, n)
	}
}

// The local address of a link between two points is ours, the other end is not (PN-02). A list that
// the kernel interrupts is not used, for addresses may be missing (TN-81).
func TestLocals(t *testing.T) {
	ns := newNamespace(t)
	ns.sh(t,
		`ip link add near type veth peer name far; ip addr add 10.9.0.1 peer 10.9.0.2/32 dev near; ip addr add 192.0.2.1/24 dev far
		ip addr add 2001:db8::1/64 dev far nodad`)
	for family, want := range map[lb.Family]string{lb.IPv4: "[10.9.0.1 192.0.2.1]", lb.IPv6: "[2001:db8::1]"} {
		table := ns.table(t, family)
		got, err := table.locals(t.Context())
		if s := fmt.Sprint(slices.SortedFunc(maps.Keys(got), netip.Addr.Compare)); s != want || err != nil {
			t.Errorf("%v: local addresses %s, %v; want %s", family, s, err, want)
		}
		table.routes = interrupted{table.routes}
		if got, err := table.locals(t.Context()); !errors.Is(err, netlink.ErrInterrupted) || got != nil {
			t.Errorf("%v: an interrupted list: %v, %v", family, got, err)
		}
	}
}

// interrupted reports each list as interrupted by the kernel.
type interrupted struct{ netlink.Transport }

func (c interrupted) Do(ctx context.Context, request []byte, f func(netlink.Message) error) error {
	return errors.Join(c.Transport.Do(ctx, request, f), netlink.ErrInterrupted)
}

// A kernel that does not answer keeps a pass waiting neither for ever nor after its context has
// ended, and the next one recovers.
func TestSilentKernel(t *testing.T) {
	ns := newNamespace(t)
	table := ns.table(t, lb.IPv4)
	flows := 0
	flow := func() {
		flows++
		ns.inject(t, 1, func(int) (client, to, from netip.AddrPort, proto lb.Proto) {
			return clientN(flows), dns, podAP, lb.UDP
		})
	}
	pass := func(ctx context.Context) error {
		_, err := table.forget(ctx, lb.UDP, allStale, func(_ lb.Key, err error) { t.Error(err) })
		return err
	}
	nlconntest.Check(t, table.dumps, flow, pass)
	flow()
	nlconntest.Silence(t, table.deletes)
	if err := pass(t.Context()); !errors.Is(err, netlink.ErrNoAnswer) { // present when the request is sent, or never
		t.Errorf("no answer to a request to delete: %v", err)
	}
	nlconntest.Check(t, table.routes.(*netlink.Conn), flow, func(ctx context.Context) error {
		_, err := table.locals(ctx)
		return err
	})
	if err := pass(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(ns.flows(t, lb.IPv4, lb.UDP)); n != 0 {
		t.Errorf("%d flows stay", n)
	}
}

func allStale(flow) (lb.Key, bool) { return lb.Key{}, true }

// New returns an error for a missing capability.
func TestNewWithoutCapability(t *testing.T) {
	ns := newNamespace(t)
	var c *Cleaner
	var err error
	ns.Do(func() { c, err = New(Config{Family: lb.IPv4}) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	ns.Do(func() {
		var none [2]unix.CapUserData
		err = unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		if err != nil {
			return
		}
		_, err = New(Config{Family: lb.IPv4})
	})
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("New without capabilities: %v", err)
	}
}

// A pass over 100,000 UDP entries with 100 stale ones.
func BenchmarkPass(b *testing.B) {
	const all, bad = 100_000, 100
	ns := newNamespace(b)
	ns.inject(b, all-bad, func(i int) (client, to, from netip.AddrPort, proto lb.Proto) {
		return clientN(i), dns, podAP, lb.UDP
	})
	t := ns.table(b, lb.IPv4)
	x := newIndex(nil)
	x.apply(set(row(vip, service, lb.Cluster, podA)))
	p := x.take(flows, nil)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		ns.inject(b, bad, func(i int) (client, to, from netip.AddrPort, proto lb.Proto) {
			return clientN(all + i), dns, netip.MustParseAddrPort(podB), lb.UDP
		})
		b.StartTimer()
		n, err := t.forget(b.Context(), lb.UDP, p.stale, func(k lb.Key, err error) { b.Errorf("%v: %v", k, err) })
		if err != nil || n.seen != all || n.deleted != bad {
			b.Fatalf("%+v, %v", n, err)
		}
	}
}

// Deletes that a pass which failed did not send are not sent by the next one: its plan may keep the
// entries.
func TestFailedPassLeavesNothing(t *testing.T) {
	ns := newNamespace(t)
	ns.inject(t, 2000, func(i int) (client, to, from netip.AddrPort, proto lb.Proto) {
		return clientN(i), dns, podAP, lb.UDP
	})
	table := ns.table(t, lb.IPv4)
	ctx, cancel := context.WithCancel(t.Context())
	one := func(flow) (lb.Key, bool) {
		first := ctx.Err() == nil
		cancel()
		return lb.Key{}, first
	}
	failed := func(_ lb.Key, err error) { t.Error(err) }
	if n, err := table.forget(ctx, lb.UDP, one, failed); err == nil || n.deleted != 0 {
		t.Fatalf("a pass that was ended: %+v, %v", n, err)
	}
	if len(table.keys) != 1 {
		t.Fatalf("%d deletes were not sent, want 1", len(table.keys))
	}
	none := func(flow) (lb.Key, bool) { return lb.Key{}, false }
	if n, err := table.forget(t.Context(), lb.UDP, none, failed); err != nil || n.deleted != 0 || n.seen != 2000 {
		t.Errorf("the next pass: %+v, %v", n, err)
	}
	if n, err := table.forget(t.Context(), lb.UDP, none, failed); err != nil || n.seen != 2000 {
		t.Errorf("afterwards %d entries are there, want 2000 (%v)", n.seen, err)
	}
}
