package planetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/failover"
	"kube-proxy/failover/control"
	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
)

// Unanswered proves, with the packets of a Service whose remote endpoint becomes silent, what a
// plane reports of unanswered connections, and how it ends them: [control.NoticeSource] and
// [control.Rescuer].
func Unanswered(t *testing.T, cfg Config) {
	for _, fam := range families {
		t.Run(fam.String(), func(t *testing.T) {
			t.Parallel()
			lab := netlab.ForTest(t, netlab.Options{Cgroup: cfg.Sockets})
			u := &unanswered{TestLab: lab, t: t, family: fam, sockets: cfg.Sockets}
			lab.On(netlab.Node1, func() {
				var err error
				u.plane, err = cfg.New(fam)
				if err != nil {
					t.Fatal(err)
				}
			})
			u.run()
		})
	}
}

// unanswered is a lab in which the endpoint of pod4 is silent at times.
type unanswered struct {
	*netlab.TestLab
	t      *testing.T
	family lb.Family
	plane  Plane
	// sockets: those of node1 and its pods keep their endpoint.
	sockets bool

	frontend, nodePort, near, far netip.AddrPort

	mu      sync.Mutex
	notices []failover.Notice
	arrived chan struct{} // has a value when one arrived
}

func (u *unanswered) run() {
	table, clusterIP, nodePort := Shop(u.family)
	u.frontend, u.nodePort = clusterIP, nodePort
	six := u.family == lb.IPv6
	u.near = netip.AddrPortFrom(netlab.Addr("pod1", six), 8080)
	u.far = netip.AddrPortFrom(netlab.Addr("pod4", six), 8080)
	u.Serve(netlab.TCP, 8080, "pod1", "pod4")
	u.reset(table)

	u.watched(func() {
		u.answered()
		for host := range u.clients() {
			u.silent(host)
		}
		u.late()
		u.fastOpen()
		u.asymmetric()
		u.established()
	})
	u.watched(u.unreachable)
	u.gone()
}

// watched runs f while the plane watches.
func (u *unanswered) watched(f func()) {
	ctx, stop := context.WithCancel(context.Background())
	u.mu.Lock()
	u.notices, u.arrived = nil, make(chan struct{}, 1)
	u.mu.Unlock()
	var watch sync.WaitGroup
	watch.Go(func() {
		u.On(netlab.Node1, func() {
			if err := u.plane.(control.NoticeSource).Run(ctx, u.notice); err != nil {
				u.t.Errorf("watch: %v", err)
			}
		})
	})
	defer watch.Wait()
	defer stop()
	for !u.hasTable() { // Run does not report that it has begun
		time.Sleep(10 * time.Millisecond)
		if u.t.Failed() {
			return
		}
	}
	f()
}

func (u *unanswered) notice(n failover.Notice) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.notices = append(u.notices, n)
	select {
	case u.arrived <- struct{}{}:
	default:
	}
}

// seen returns the notices so far, and forgets them.
func (u *unanswered) seen() []failover.Notice {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.notices
	u.notices = nil
	return all
}

func (u *unanswered) rescuer() control.Rescuer { return u.plane.(control.Rescuer) }

func (u *unanswered) reset(table *lb.Table) {
	u.t.Helper()
	u.On(netlab.Node1, func() {
		if _, err := ResetAll(context.Background(), u.plane, table); err != nil {
			u.t.Fatal(err)
		}
	})
}

// without returns the table without the silent endpoint, as a policy that avoids it makes it.
func (u *unanswered) without() *lb.Table {
	table, _, _ := Shop(u.family)
	want := &lb.Table{Node: table.Node}
	set := &lb.BackendSet{ID: lb.SetID{Service: "shop/web:http", Proto: lb.TCP, Scope: lb.Cluster},
		Backends: lb.BackendsOf(lb.Backend{Addr: u.near, Local: true})}
	var all []*lb.Frontend
	for f := range table.All() {
		now := *f
		now.Routes = nil
		for _, r := range f.Routes {
			r.To = set
			now.Routes = append(now.Routes, r)
		}
		all = append(all, &now)
	}
	want.Replace(lb.Owner{Name: "shop/web"}, all)
	return want
}

// clients are a pod, the node, and a client of a NodePort.
func (u *unanswered) clients() map[string]netip.AddrPort {
	return map[string]netip.AddrPort{"pod2": u.frontend, netlab.Node1: u.frontend, netlab.Client: u.nodePort}
}

// enough connections meet both endpoints: all but one in 32,768 times if each chooses at random.
const enough = 16

// dial makes n connections from a client at once, and returns a function that waits for them and
// returns the slowest.
func (u *unanswered) dial(host string, n int) (wait func() (slowest time.Duration)) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var slowest time.Duration
	for range n {
		all.Go(func() {
			begin := time.Now()
			dial := func() (netlab.Reply, error) {
				return u.Dial(host, netlab.TCP, u.clients()[host], netlab.DialOptions{Timeout: time.Minute})
			}
			_, err := dial()
			if u.sockets && errors.Is(err, unix.ECONNABORTED) {
				_, err = dial()
			}
			if err != nil {
				u.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, time.Since(begin))
		})
	}
	return func() time.Duration {
		all.Wait()
		return slowest
	}
}

// answered: connections that are answered at once cause no notice.
func (u *unanswered) answered() {
	u.t.Helper()
	for range 10 {
		slowest := time.Duration(0)
		for host := range u.clients() {
			slowest = max(slowest, u.dial(host, 30)())
		}
		all := u.seen()
		if len(all) == 0 {
			return
		}
		if slowest < 900*time.Millisecond { // the kernel repeats a SYN after a second
			u.t.Errorf("connections were answered in %v at most, and the plane reports %+v", slowest, all)
			return
		}
	}
	u.t.Error("no round in which all connections were answered at once")
}

// script runs an nft script or another program in pod4.
func (u *unanswered) script(host, program string, args ...string) {
	u.t.Helper()
	if out, err := u.Command(host, program, args...).CombinedOutput(); err != nil {
		u.t.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
}

const silence = `add table inet silence
	add chain inet silence input { type filter hook input priority 0 ; }
	flush chain inet silence input
	`

// await waits for a notice about the endpoint from a client's packets.
func (u *unanswered) await(kind failover.Kind, host string) {
	u.t.Helper()
	want := failover.Notice{Kind: kind, Proto: lb.TCP, Endpoint: u.far, Frontend: u.clients()[host]}
	for deadline := time.After(30 * time.Second); ; {
		all := u.seen()
		for _, n := range all {
			if u.sockets && n.Kind == failover.Unreachable && !n.Frontend.IsValid() {
				n.Frontend = want.Frontend // the program connected to the endpoint
			}
			if n == want {
				return
			}
			n.Kind = kind
			if n != want {
				u.t.Errorf("notice %+v, want %+v", n, want)
			}
		}
		select {
		case <-u.arrived:
		case <-deadline:
			u.t.Fatalf("no notice of kind %d about packets of %s: %s", kind, host, u.tableText())
		}
	}
}

// endpoint is the silent one.
func (u *unanswered) endpoint() []failover.Endpoint {
	return []failover.Endpoint{{Addr: u.far, Proto: lb.TCP}}
}

// loseSYNs has pod4 drop all first packets.
func (u *unanswered) loseSYNs() {
	u.t.Helper()
	u.script("pod4", "nft", silence+"add rule inet silence input tcp flags & (syn | ack) == syn drop")
}

// rescue waits for a notice about a client's packets, avoids the endpoint, and rescues its clients.
func (u *unanswered) rescue(host string) (rescued int) {
	u.t.Helper()
	u.await(failover.Retransmission, host)
	time.Sleep(600 * time.Millisecond) // the probe
	u.reset(u.without())
	rescued, err := u.rescuer().Rescue(context.Background(), u.endpoint())
	if err != nil {
		u.t.Fatal(err)
	}
	if rescued == 0 {
		u.t.Error("no connection was rescued")
	}
	return rescued
}

// silent: the first packets to one of two endpoints are lost. When it is avoided and rescued, all
// waiting connections of a client succeed.
func (u *unanswered) silent(host string) {
	u.t.Helper()
	u.loseSYNs()
	wait := u.dial(host, enough)
	rescued := u.rescue(host)
	u.t.Logf("%s: with %d rescued connections, the slowest connect took %v", host, rescued, wait())
	u.seen()
	u.t.Logf("%s: later connections took %v at most", host, u.dial(host, enough)())
	for _, n := range u.seen() {
		u.t.Errorf("the silent endpoint is avoided, and the plane reports %+v", n)
	}
	table, _, _ := Shop(u.family)
	u.script("pod4", "nft", silence)
	u.reset(table)
}

// late: answers that arrive after the rescue meet no entry, and do not disturb their client, which
// has another endpoint.
func (u *unanswered) late() {
	u.t.Helper()
	version, gateway := "-4", "169.254.1.1"
	if u.family == lb.IPv6 {
		version, gateway = "-6", "fe80::1"
	}
	out, err := u.Command("pod4", "ip", version, "neigh", "show", "to", gateway, "dev", netlab.Uplink).Output()
	words := strings.Fields(string(out))
	if err != nil || len(words) < 3 {
		u.t.Fatalf("neighbour of pod4: %v: %q", err, out)
	}
	for host := range u.clients() {
		u.seen()
		// The kernel keeps packets to an unknown neighbour for three seconds.
		u.script("pod4", "ip", version, "neigh", "del", gateway, "dev", netlab.Uplink)
		wait := u.dial(host, enough)
		u.rescue(host)
		u.script("pod4", "ip", version, "neigh", "replace", gateway, "lladdr", words[2], "nud", "permanent", "dev",
			netlab.Uplink)
		u.t.Logf("%s: with late answers, the slowest connect took %v", host, wait())
		table, _, _ := Shop(u.family)
		u.reset(table)
		time.Sleep(time.Second) // all late answers
	}
	u.seen()
}

// fastOpen: a client whose first packet has data (RFC 7413) gets another endpoint, too.
func (u *unanswered) fastOpen() {
	u.t.Helper()
	host := "pod2"
	for _, name := range []string{host, "pod1", "pod4"} { // client and server, without cookies
		u.script(name, "sysctl", "-qw", fmt.Sprintf("net.ipv4.tcp_fastopen=%d", 0x1|0x2|0x4|0x200|0x400))
	}
	u.loseSYNs()
	var all sync.WaitGroup
	for range enough {
		all.Go(func() {
			err := u.sendFirst(host)
			if u.sockets && errors.Is(err, unix.ECONNABORTED) {
				err = u.sendFirst(host)
			}
			if err != nil {
				u.t.Errorf("a connection whose first packet has data: %v", err)
			}
		})
	}
	u.rescue(host)
	all.Wait()
	u.script("pod4", "nft", silence)
	table, _, _ := Shop(u.family)
	u.reset(table)
	u.seen()
}

// sendFirst connects by TCP fast open to the Service, with a line of data, and reads an answer.
func (u *unanswered) sendFirst(host string) (err error) {
	var file *os.File
	u.On(host, func() {
		var fd int
		af, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(u.frontend.Port())})
		if u.family == lb.IPv6 {
			af, to = unix.AF_INET6, &unix.SockaddrInet6{Port: int(u.frontend.Port()), Addr: u.frontend.Addr().As16()}
		} else {
			to.(*unix.SockaddrInet4).Addr = u.frontend.Addr().As4()
		}
		fd, err = unix.Socket(af, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			file = os.NewFile(uintptr(fd), "fast open")
			err = unix.Sendto(fd, []byte("line\n"), unix.MSG_FASTOPEN, to)
		}
		if err == nil {
			_, err = unix.Read(fd, make([]byte, 100))
		}
	})
	return errors.Join(err, file.Close())
}

// asymmetric: where answers do not pass through the node, conntrack sees none. A connection is not
// disturbed, because its first packet is not sent again.
func (u *unanswered) asymmetric() {
	u.t.Helper()
	six := u.family == lb.IPv6
	version, bits := "-4", 32
	if six {
		version, bits = "-6", 128
	}
	u.script(netlab.Client, "ip", version, "route", "add", fmt.Sprintf("%s/%d", u.far.Addr(), bits), "via",
		netlab.Addr(netlab.Node1, six).String(), "dev", netlab.Uplink)
	c, err := u.Open(netlab.Client, netlab.TCP, u.far, netlab.DialOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	defer c.Close()
	time.Sleep(1500 * time.Millisecond)
	for _, n := range u.seen() {
		u.t.Errorf("answers take another way, and the plane reports %+v", n)
	}
	if _, err := u.rescuer().Rescue(context.Background(), u.endpoint()); err != nil {
		u.t.Error(err)
	}
	if _, err := c.Exchange(); err != nil {
		u.t.Errorf("a connection whose answers take another way: %v", err)
	}
}

// established: connections to an endpoint whose node is gone end with a reset, though their clients
// only wait; those to the other endpoint stay.
func (u *unanswered) established() {
	u.t.Helper()
	type client struct {
		*netlab.Conn
		far bool
	}
	var all []client
	for host, to := range u.clients() {
		for n := map[bool]int{}; n[true] < 2 || n[false] < 2; {
			c, err := u.Open(host, netlab.TCP, to, netlab.DialOptions{Timeout: 10 * time.Second})
			if err != nil {
				u.t.Fatal(err)
			}
			far := c.First().Server == "pod4"
			n[far]++
			all = append(all, client{c, far})
		}
	}
	direct, err := u.Open("pod2", netlab.TCP, u.far, netlab.DialOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	defer direct.Close()
	u.script("pod4", "nft", silence+"add rule inet silence input tcp dport 8080 drop")
	u.reset(u.without())
	ended, err := u.rescuer().ResetConnections(context.Background(), u.endpoint())
	if err != nil {
		u.t.Fatal(err)
	}
	want := 0
	for _, c := range all {
		if c.far {
			want++
			if err := c.Await(); !errors.Is(err, netlab.ErrReset) && !(u.sockets && errors.Is(err, unix.ECONNABORTED)) {
				u.t.Errorf("a connection to the endpoint whose node is gone: %v, want a reset", err)
			}
		} else if _, err := c.Exchange(); err != nil {
			u.t.Errorf("a connection to the other endpoint: %v", err)
		}
		c.Close()
	}
	if ended != want {
		u.t.Errorf("%d connections ended, want %d", ended, want)
	}
	// New connections to the endpoint are not affected, nor are those past the Service.
	u.script("pod4", "nft", silence)
	if _, err := direct.Exchange(); err != nil {
		u.t.Errorf("a connection that a client made to the endpoint itself: %v", err)
	}
	table, _, _ := Shop(u.family)
	u.reset(table)
	for host := range u.clients() {
		u.dial(host, enough)()
	}
}

// unreachable: another node answers for the endpoint by ICMP.
func (u *unanswered) unreachable() {
	u.t.Helper()
	version := "-4"
	if u.family == lb.IPv6 {
		version = "-6"
	}
	route := []string{version, "route", "replace", "unreachable", u.far.Addr().String()}
	u.script(netlab.Node2, "ip", route...)
	for host, to := range u.clients() {
		u.seen()
		var all sync.WaitGroup
		for range enough {
			all.Go(func() { // some of them fail: nothing rescues them
				_, _ = u.Dial(host, netlab.TCP, to, netlab.DialOptions{})
			})
		}
		u.await(failover.Unreachable, host)
		all.Wait()
		time.Sleep(3 * time.Second) // in which the endpoint may be reported again
	}
}

func (u *unanswered) tableText() string {
	name := "ip"
	if u.family == lb.IPv6 {
		name = "ip6"
	}
	out, _ := u.Command(netlab.Node1, "nft", "list", "table", name, "kube-proxy-failover").CombinedOutput()
	return string(out)
}

func (u *unanswered) hasTable() bool { return strings.HasPrefix(u.tableText(), "table") }

// gone: after the watch, the kernel has none of its rules.
func (u *unanswered) gone() {
	u.t.Helper()
	if u.hasTable() {
		u.t.Errorf("the table is there after the watch:\n%s", u.tableText())
	}
	_, err := u.rescuer().Rescue(context.Background(), nil)
	if err == nil {
		u.t.Error("a rescue without a watch succeeds")
	}
}
