package flows

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
)

// node is a namespace that has service addresses, and the pods that answer them, on lo.
type node struct{ *netlab.Namespace }

func newNode(t *testing.T) node {
	t.Helper()
	n := node{netlab.NamespaceForTest(t)}
	n.sh(t, `ip link set lo up
		for i in 1 2 3; do ip addr add 10.1.0.$i/32 dev lo; ip addr add 2001:db8:1::$i/128 dev lo nodad; done
		ip addr add 192.0.2.1/32 dev lo; ip addr add 2001:db8::1/128 dev lo nodad
		ip route add 10.96.0.0/16 dev lo; ip route add 198.51.100.0/24 dev lo; ip -6 route add 2001:db8:96::/64 dev lo
		nft -f - <<'END'
table ip t { chain out { type nat hook output priority -100;
		ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 80 dnat to 10.1.0.1:8080
		ip daddr 192.0.2.1 tcp dport 30080 dnat to 10.1.0.1:8080; }
	chain post { type nat hook postrouting priority 100; ip daddr 10.1.0.1 ip saddr 192.0.2.1 snat to 10.1.0.3; }
	chain marks { type filter hook output priority 0; ct state new ct mark set 0x77; }; }
table ip6 t { chain out { type nat hook output priority -100; ip6 daddr 2001:db8:96::10 tcp dport 80 dnat to [2001:db8:1::1]:8080; }; }
END`)
	return n
}

func (n node) sh(t *testing.T, lines string) {
	t.Helper()
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command("sh", "-ec", lines).CombinedOutput() })
	if err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
}

// serve accepts connections and holds them until the test ends.
func (n node) serve(t *testing.T, at string) {
	t.Helper()
	var l net.Listener
	var err error
	n.Do(func() { l, err = net.Listen("tcp", at) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
}

// dial connects from an address; the connection is closed when the test ends.
func (n node) dial(t *testing.T, network, from, to string) net.Conn {
	t.Helper()
	var c net.Conn
	var err error
	n.Do(func() {
		d := net.Dialer{Timeout: 10 * time.Second}
		local := netip.MustParseAddrPort(from)
		if network == "tcp" {
			d.LocalAddr = net.TCPAddrFromAddrPort(local)
		} else {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		}
		c, err = d.Dial(network, to)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// inject puts entries into the table without sending packets.
func (n node) inject(t testing.TB, first, count int, entry func(i int) ctwire.Entry) {
	t.Helper()
	var err error
	n.Do(func() {
		err = ctwire.Fill(context.Background(), count, func(i int) ctwire.Entry { return entry(first + i) })
	})
	if err != nil {
		t.Fatal(err)
	}
}

// numbered is an entry of a separate client.
func numbered(i int, to string) ctwire.Entry {
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 14), byte(i >> 6)}), uint16(1024+i&63))
	return ctwire.Entry{Orig: ctwire.Tuple{From: client, To: netip.MustParseAddrPort(to), Proto: 6}, State: 3,
		Reply:  ctwire.Tuple{From: netip.MustParseAddrPort("10.1.0.1:8080"), To: client, Proto: 6},
		Status: ctwire.SeenReply | ctwire.Assured, Timeout: 600}
}

func (n node) find(t *testing.T, q Query) Found {
	t.Helper()
	var f Found
	var err error
	n.Do(func() { f, err = Find(t.Context(), q) })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The connections of a client to an address are reported as the kernel has them, with and without
// the client's port.
func TestFind(t *testing.T) {
	n := newNode(t)
	n.serve(t, "10.1.0.1:8080")
	n.serve(t, "[2001:db8:1::1]:8080")
	n.dial(t, "tcp", "10.1.0.2:40000", "10.96.0.10:80")
	n.dial(t, "tcp", "10.1.0.2:40001", "10.96.0.10:80")
	n.dial(t, "tcp", "10.1.0.2:40002", "10.1.0.1:8080") // no Service's
	n.dial(t, "tcp", "192.0.2.1:40000", "10.96.0.10:80")
	n.dial(t, "tcp", "[2001:db8:1::2]:40000", "[2001:db8:96::10]:80")
	udp := n.dial(t, "udp", "10.1.0.2:40000", "10.96.0.10:80")
	if _, err := udp.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proto    lb.Proto
		from, to string
		want     string // without the time
	}{
		{lb.TCP, "10.1.0.2:40001", "10.96.0.10:80", "tcp ESTABLISHED 10.1.0.2:40001 to 10.96.0.10:80, answered by " +
			"10.1.0.1:8080"},
		{lb.TCP, "10.1.0.2:0", "10.96.0.10:80", "tcp ESTABLISHED 10.1.0.2:40000 to 10.96.0.10:80, answered by " +
			"10.1.0.1:8080\ntcp ESTABLISHED 10.1.0.2:40001 to 10.96.0.10:80, answered by 10.1.0.1:8080"},
		{lb.UDP, "10.1.0.2:0", "10.96.0.10:80",
			"udp 10.1.0.2:40000 to 10.96.0.10:80, not yet answered by 10.1.0.1:8080"},
		{lb.TCP, "192.0.2.1:0", "10.96.0.10:80", "tcp ESTABLISHED 192.0.2.1:40000 to 10.96.0.10:80, answered by " +
			"10.1.0.1:8080, which sees 10.1.0.3:40000"},
		{lb.TCP, "10.1.0.2:0", "10.1.0.1:8080", "tcp ESTABLISHED 10.1.0.2:40002 to 10.1.0.1:8080"},
		{lb.TCP, "[2001:db8:1::2]:0", "[2001:db8:96::10]:80", "tcp ESTABLISHED [2001:db8:1::2]:40000 to " +
			"[2001:db8:96::10]:80, answered by [2001:db8:1::1]:8080"},
		{lb.TCP, "[2001:db8:1::2]:40000", "[2001:db8:96::10]:80",
			"tcp ESTABLISHED [2001:db8:1::2]:40000 to [2001:db8:96::10]:80, answered by [2001:db8:1::1]:8080"},
		{lb.TCP, "10.1.0.2:40003", "10.96.0.10:80", ""},
		{lb.TCP, "10.1.0.3:0", "10.96.0.10:80", ""},
		{lb.UDP, "10.1.0.2:40001", "10.96.0.10:80", ""},
		// The reply direction is not a connection.
		{lb.TCP, "10.1.0.1:8080", "10.1.0.2:40000", ""},
	} {
		got := n.find(t, Query{Proto: c.proto, From: netip.MustParseAddrPort(c.from),
			To: netip.MustParseAddrPort(c.to)})
		var words []string
		for _, f := range got.Flows {
			s, _, timed := strings.Cut(f.String(), ", for ")
			if !timed || f.Timeout <= 0 {
				t.Errorf("%s: no time", f)
			}
			words = append(words, s)
		}
		if s := strings.Join(words, "\n"); s != c.want && s != reversed(c.want) || got.More {
			t.Errorf("%s %s to %s:\n%s, more: %v\nwant\n%s", c.proto, c.from, c.to, s, got.More, c.want)
		}
	}
}

// reversed returns the other order in which the kernel may list two.
func reversed(s string) string {
	a, b, _ := strings.Cut(s, "\n")
	return b + "\n" + a
}

// Open connections come before ended ones, however many have ended; those are only counted: a
// client that opens a connection for each request leaves hundreds behind. The search keeps no data
// of the others.
func TestFindAmongEnded(t *testing.T) {
	const closed, timeWait, halfClosed, established, synSent = 8, 7, 5, 3, 1
	n := newNode(t)
	port := 0
	inject := func(count int, state uint8, to string) {
		n.inject(t, 0, count, func(int) ctwire.Entry {
			port++
			e := numbered(0, to)
			client := netip.AddrPortFrom(e.Orig.From.Addr(), uint16(10_000+port))
			e.Orig.From, e.Reply.To, e.State = client, client, state
			return e
		})
	}
	inject(200, closed, "10.96.0.10:80")
	inject(100, timeWait, "10.96.0.10:80")
	inject(1, established, "10.96.0.10:80")
	held := netip.AddrPortFrom(netip.MustParseAddr("100.64.0.0"), uint16(10_000+port))
	inject(300, halfClosed, "10.96.0.11:80")
	inject(300, closed, "10.96.0.11:80")
	inject(2, established, "10.96.0.11:80")
	inject(1, synSent, "10.96.0.11:80")
	inject(30, established, "10.96.0.12:80")
	inject(30, closed, "10.96.0.12:80")
	inject(300, closed, "10.96.0.13:80")
	for _, c := range []struct {
		to    string
		from  netip.AddrPort // if not any port of the client
		most  int
		want  string // how many of each state
		ended int
		more  bool
	}{
		{to: "10.96.0.10:80", most: 20, want: "map[ESTABLISHED:1]", ended: 300},
		{to: "10.96.0.11:80", most: 20, want: "map[CLOSE_WAIT:17 ESTABLISHED:2 SYN_SENT:1]", ended: 300, more: true},
		{to: "10.96.0.11:80", most: 500, want: "map[CLOSE_WAIT:300 ESTABLISHED:2 SYN_SENT:1]", ended: 300},
		{to: "10.96.0.12:80", most: 30, want: "map[ESTABLISHED:30]", ended: 30},
		{to: "10.96.0.13:80", most: 20, want: "map[]", ended: 300},
		// A connection that the query names exactly is reported in any state: a new one from that
		// port meets it.
		{to: "10.96.0.10:80", from: netip.MustParseAddrPort("100.64.0.0:10001"), most: 20, want: "map[CLOSE:1]"},
		{to: "10.96.0.10:80", from: held, most: 20, want: "map[ESTABLISHED:1]"},
	} {
		from := c.from
		if !from.IsValid() {
			from = netip.MustParseAddrPort("100.64.0.0:0")
		}
		f := n.find(t, Query{Proto: lb.TCP, From: from, To: netip.MustParseAddrPort(c.to), Most: c.most})
		states, ranks := map[string]int{}, []int{}
		for _, flow := range f.Flows {
			states[flow.State]++
			ranks = append(ranks, int(flow.stage()))
		}
		if fmt.Sprint(states) != c.want || f.Ended != c.ended || f.More != c.more || !slices.IsSorted(ranks) {
			t.Errorf("%s to %s, at most %d: %v, %d have ended, more: %v; want %s, %d, %v", from, c.to, c.most, states,
				f.Ended, f.More, c.want, c.ended, c.more)
		}
	}
	// If more are open than requested, reading stops, and only some of the ended ones are counted.
	f := n.find(t, Query{Proto: lb.TCP, From: netip.MustParseAddrPort("100.64.0.0:0"),
		To: netip.MustParseAddrPort("10.96.0.12:80"), Most: 20})
	if len(f.Flows) != 20 || !f.More || f.Ended > 30 {
		t.Errorf("%d flows, %d have ended, more: %v; want 20 of 30, and more", len(f.Flows), f.Ended, f.More)
	}
}

// Entries of other clients of the same address are not read if the kernel can filter, so that a
// table of any size costs only the kernel's time; a query past its deadline returns the results so
// far.
func TestFindReadsLittle(t *testing.T) {
	n := newNode(t)
	n.inject(t, 0, 20_000, func(i int) ctwire.Entry { return numbered(64+i, "10.96.0.10:80") })
	n.inject(t, 0, 64, func(i int) ctwire.Entry { return numbered(i, "10.96.0.10:80") })
	q := Query{Proto: lb.TCP, From: netip.MustParseAddrPort("100.64.0.0:0"),
		To: netip.MustParseAddrPort("10.96.0.10:80")}
	if f := n.find(t, q); len(f.Flows) != 64 || f.read != 64 {
		t.Errorf("%d flows, of %d that were read; want 64 of 64", len(f.Flows), f.read)
	}
	q.From = netip.MustParseAddrPort("100.64.0.0:1030")
	if f := n.find(t, q); len(f.Flows) != 1 || f.read != 1 {
		t.Errorf("of one port: %d flows, of %d that were read", len(f.Flows), f.read)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	n.Do(func() {
		if f, err := Find(ctx, q); err != nil || !f.More {
			t.Errorf("after its time: %+v, %v; want that there may be more", f, err)
		}
	})
}

// sum reads rates until they contain n connections, or time is up.
func sum(t *testing.T, rates <-chan *Rates, n uint64) (rows map[string]uint64, last *Rates) {
	t.Helper()
	end := time.After(20 * time.Second)
	for {
		select {
		case r, open := <-rates:
			if !open {
				t.Fatal("no more rates")
			}
			rows, last = map[string]uint64{}, r
			all := r.MissedInAll
			for _, rate := range r.Frontends {
				rows[rate.Family.String()+" "+rate.Frontend.Key.String()] = rate.Total
				all += rate.Total
			}
			if all >= n {
				return rows, r
			}
		case <-end:
			t.Fatalf("after %v: %+v, %+v; want %d", 20*time.Second, rows, last, n)
		}
	}
}

// Top counts exactly the opened connections: 5,000, some real, in both families, protocols and
// NodePorts; none without a Service.
func TestTop(t *testing.T) {
	n := newNode(t)
	n.serve(t, "10.1.0.1:8080")
	n.serve(t, "[2001:db8:1::1]:8080")
	n.dial(t, "tcp", "10.1.0.2:0", "10.96.0.10:80") // before any query

	var top *Top
	var err error
	n.Do(func() { top, err = Listen(tables) })
	if err != nil {
		t.Fatal(err)
	}
	top.every = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rates := follow(ctx, top)
	want := map[string]uint64{"IPv4 10.96.0.10:80/tcp": 4950, "IPv4 10.96.0.10:80/udp": 10,
		"IPv4 nodeport:30080/tcp": 30, "IPv6 [2001:db8:96::10]:80/tcp": 10}
	for range 50 {
		n.dial(t, "tcp", "10.1.0.2:0", "10.96.0.10:80").Close()
	}
	for range 10 {
		n.dial(t, "tcp", "[2001:db8:1::2]:0", "[2001:db8:96::10]:80")
		udp := n.dial(t, "udp", "10.1.0.2:0", "10.96.0.10:80")
		for range 3 {
			udp.Write([]byte("x")) // refused from the second on: no server listens
		}
		n.dial(t, "tcp", "10.1.0.2:0", "10.1.0.1:8080")
	}
	for range 30 {
		n.dial(t, "tcp", "10.1.0.2:0", "192.0.2.1:30080")
	}
	n.inject(t, 0, 4900, func(i int) ctwire.Entry { return numbered(i, "10.96.0.10:80") })
	// At a foreign node's port, and at an address of this one that answers no NodePorts.
	n.inject(t, 5000, 5, func(i int) ctwire.Entry { return numbered(i, "192.0.2.2:30080") })
	n.inject(t, 6000, 5, func(i int) ctwire.Entry { return numbered(i, "10.1.0.1:30080") })

	rows, last := sum(t, rates, 5000)
	if fmt.Sprint(rows) != fmt.Sprint(want) || last.MissedInAll != 0 {
		t.Errorf("%v, missed %d; want %v", rows, last.MissedInAll, want)
	}
}

// A burst that overruns the buffer is reported: counted and missed connections add up to all.
func TestTopOverrun(t *testing.T) {
	const all = 40000
	n := newNode(t)
	before := sockets(t)
	gate := make(chan struct{})
	var f *kernelFeed
	var err error
	n.Do(func() { f, err = openKernel() })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rates := follow(ctx, &Top{tables: tables, every: 20 * time.Millisecond, most: 10, from: slowFeed{f, gate}})
	n.inject(t, 0, all, func(i int) ctwire.Entry { return numbered(i, "10.96.0.10:80") })
	close(gate)
	rows, last := sum(t, rates, all)
	got := rows["IPv4 10.96.0.10:80/tcp"]
	if last.MissedInAll == 0 || got+last.MissedInAll != all || got < 1000 {
		t.Errorf("counted %d, missed %d, of %d", got, last.MissedInAll, all)
	}
	// Later connections are counted in full again, and the numbers are exact again.
	n.inject(t, all, 100, func(i int) ctwire.Entry { return numbered(i, "10.96.0.10:80") })
	rows, _ = sum(t, rates, all+100)
	if now := rows["IPv4 10.96.0.10:80/tcp"]; now != got+100 {
		t.Errorf("counted %d after %d, want 100 more", now, got)
	}
	for r := range rates {
		if !r.AtLeast() {
			break
		}
	}
	cancel()
	for range rates { // until it is closed
	}
	if now := sockets(t); now > before {
		t.Errorf("%d sockets stay", now-before)
	}
}

// slowFeed does not read before the gate opens.
type slowFeed struct {
	*kernelFeed
	gate chan struct{}
}

func (f slowFeed) listen(each func(*ctwire.Entry), lost func()) {
	<-f.gate
	f.kernelFeed.listen(each, lost)
}

// sockets is how many sockets this process has.
func sockets(t *testing.T) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// If the kernel sends no events, the error describes how to enable them.
func TestTopWithoutEvents(t *testing.T) {
	n := newNode(t)
	n.sh(t, "echo 0 >/proc/sys/net/netfilter/nf_conntrack_events")
	var err error
	n.Do(func() { _, err = Listen(tables) })
	if err == nil || !strings.Contains(err.Error(), "nf_conntrack_events") {
		t.Errorf("%v", err)
	}
}
