package sockets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/tables"
)

// fakeKernel has the sockets that a test gives it.
type fakeKernel struct {
	mu     sync.Mutex
	list   map[lb.Proto][]socket
	own    []uint32
	err    error
	asked  []string
	closed bool
	locals []netip.Addr
	lost   error // of local
}

func (k *fakeKernel) local() ([]netip.Addr, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.locals), k.lost
}

// lose makes local fail.
func (k *fakeKernel) lose(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost = err
}

// has gives the node addresses.
func (k *fakeKernel) has(addrs ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.locals = nil
	for _, a := range addrs {
		k.locals = append(k.locals, netip.MustParseAddr(a))
	}
}

func (k *fakeKernel) sockets(_ context.Context, proto lb.Proto, port uint16) ([]socket, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, fmt.Sprint(port, "/", proto))
	return slices.Clone(k.list[proto]), k.err
}

func (k *fakeKernel) ours() (map[uint32]struct{}, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[uint32]struct{}{}
	for _, n := range k.own {
		out[n] = struct{}{}
	}
	return out, k.err
}

func (k *fakeKernel) close() { k.closed = true }

func (k *fakeKernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// set replaces the sockets: "tcp 0.0.0.0:80", each with the inode 100 + its place; "only" after it
// is v6only.
func (k *fakeKernel) set(text ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = map[lb.Proto][]socket{}
	for i, line := range text {
		f := strings.Fields(line)
		proto, err := lb.ParseProto(f[0])
		if err != nil {
			panic(err)
		}
		k.list[proto] = append(k.list[proto], socket{netip.MustParseAddrPort(f[1]), uint32(100 + i), len(f) > 2})
	}
}

type rig struct {
	*Watcher
	t      *testing.T
	kernel *fakeKernel
	log    strings.Builder

	reportedMu sync.Mutex
	reported   []string
}

// notLoopback: NodePorts answer at all addresses but loopback ones.
func notLoopback(a netip.Addr) bool { return !a.IsLoopback() }

// bubble runs a test with a Watcher in fake time.
func bubble(t *testing.T, f func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, kernel: &fakeKernel{}}
		r.Watcher = newWatcher(Config{Log: slog.New(slog.NewTextHandler(&r.log, nil)),
			Local: r.kernel.local, Serves: notLoopback,
			Collides: func(c Collision) {
				r.reportedMu.Lock()
				defer r.reportedMu.Unlock()
				line := c.Service + " " + strings.TrimPrefix(c.Key.String(), "nodeport:") + " "
				if c.Listener.IsValid() {
					line += c.Listener.String()
				}
				line += c.NodePort
				if c.More > 0 {
					line += fmt.Sprint(" and ", c.More)
				}
				r.reported = append(r.reported, line)
			}}, r.kernel)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		f(r)
		cancel()
		<-done
		if !r.kernel.closed {
			t.Error("Run has not closed the kernel")
		}
	})
}

// apply adds frontends, "shop/web 30080/tcp" or "shop/web 192.0.2.1:80/tcp"; "-30080/tcp" removes
// one, a third word is the kind.
func (r *rig) apply(fam lb.Family, rows ...string) {
	var changes []lb.Change
	for _, row := range rows {
		f := strings.Fields(row)
		gone := strings.HasPrefix(row, "-")
		text := strings.TrimPrefix(f[len(f[:min(2, len(f))])-1], "-")
		kind := lb.ExternalIP
		if !strings.Contains(text, ":") {
			text, kind = "nodeport:"+text, lb.NodePort
		}
		key, err := tables.Key(text)
		if err != nil {
			r.t.Fatal(err)
		}
		c := lb.Change{Key: key}
		if !gone {
			c.New = &lb.Frontend{Key: key, Service: f[0], Kind: kind}
			switch {
			case len(f) > 2 && f[2] == "cluster":
				c.New.Kind = lb.ClusterIP
			case len(f) > 2 && f[2] == "lb":
				c.New.Kind = lb.LoadBalancer
			case len(f) > 2:
				c.New.Kind = lb.HealthCheck
			}
		}
		changes = append(changes, c)
	}
	r.Observer(fam).Applied(changes)
}

// expect waits for a time and compares the reports since the last call.
func (r *rig) expect(wait time.Duration, want ...string) {
	r.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	r.reportedMu.Lock()
	defer r.reportedMu.Unlock()
	slices.Sort(r.reported)
	if !slices.Equal(r.reported, want) {
		r.t.Errorf("told %q, want %q; log: %s", r.reported, want, r.log.String())
	}
	r.reported = nil
}

const (
	soon = 200 * time.Millisecond
	late = 6 * time.Minute
)

// PN-60: each case in which a socket conflicts with a NodePort, or does not.
func TestCollides(t *testing.T) {
	for _, c := range []struct {
		name, socket string
		v4, v6       bool // in the way of the NodePort of that family
	}{
		{"all IPv4 addresses", "tcp 0.0.0.0:30080", true, false},
		{"one IPv4 address", "tcp 192.0.2.1:30080", true, false},
		{"loopback", "tcp 127.0.0.1:30080", false, false},
		{"all addresses", "tcp [::]:30080", true, true},
		{"all IPv6 addresses", "tcp [::]:30080 only", false, true},
		{"one IPv6 address", "tcp [2001:db8::1]:30080", false, true},
		{"IPv6 loopback", "tcp [::1]:30080", false, false},
		{"a mapped address", "tcp [::ffff:192.0.2.1]:30080", true, false},
		{"a mapped loopback address", "tcp [::ffff:127.0.0.1]:30080", false, false},
		{"another protocol", "udp 0.0.0.0:30080", false, false},
		{"another port", "tcp 0.0.0.0:30081", false, false},
		{"SCTP", "sctp 0.0.0.0:30080", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
				bubble(t, func(r *rig) {
					r.kernel.set(c.socket)
					r.apply(fam, "shop/web:http 30080/tcp")
					var want []string
					if fam == lb.IPv4 && c.v4 || fam == lb.IPv6 && c.v6 {
						want = []string{"shop/web:http 30080/tcp " + strings.Fields(c.socket)[1]}
					}
					r.expect(soon, want...)
				})
			}
		})
	}
}

// Each state is reported once: not again for the other family, the next check or an equal frontend;
// again after it had ended, and for another Service. Programs that start later are found later. A
// single port is queried alone.
func TestOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.kernel.set("tcp [::]:30080", "sctp 0.0.0.0:30090")
		r.apply(lb.IPv4, "shop/web 30080/tcp")
		r.expect(soon, "shop/web 30080/tcp [::]:30080")
		if want := []string{"30080/tcp"}; !slices.Equal(r.kernel.asked, want) {
			t.Errorf("asked for %q, want %q", r.kernel.asked, want)
		}
		r.apply(lb.IPv6, "shop/web 30080/tcp")
		r.apply(lb.IPv4, "shop/web 30080/tcp", "shop/sig 30090/sctp", "shop/other 30070/tcp")
		r.expect(soon, "shop/sig 30090/sctp 0.0.0.0:30090")
		r.expect(3 * late)
		r.kernel.set("tcp 0.0.0.0:30070")
		r.expect(late, "shop/other 30070/tcp 0.0.0.0:30070")
		r.kernel.set("tcp 0.0.0.0:30070", "tcp [::]:30080")
		r.expect(late, "shop/web 30080/tcp [::]:30080")
		// The NodePort is removed from one family, which changes nothing, then from both, and is
		// added again.
		r.apply(lb.IPv4, "-30080/tcp")
		r.expect(late)
		r.apply(lb.IPv6, "-30080/tcp")
		r.expect(late)
		r.apply(lb.IPv6, "shop/web 30080/tcp")
		r.expect(soon, "shop/web 30080/tcp [::]:30080")
		r.apply(lb.IPv6, "shop/new 30080/tcp")
		r.expect(soon, "shop/new 30080/tcp [::]:30080")
	})
}

// HT-10: a health-check port has a listener of this process, and its other sockets are no
// collisions either.
func TestOwn(t *testing.T) {
	bubble(t, func(r *rig) {
		r.kernel.set("tcp [::]:31000", "tcp 0.0.0.0:30080", "tcp 0.0.0.0:30081")
		r.kernel.own = []uint32{101}
		r.apply(lb.IPv4, "shop/web 31000/tcp health", "shop/web 30080/tcp", "shop/web 30081/tcp")
		r.expect(late, "shop/web 30081/tcp 0.0.0.0:30081")
		// A NodePort that becomes a health-check port is no NodePort any longer.
		r.apply(lb.IPv4, "shop/web 30081/tcp health")
		r.kernel.set()
		r.expect(late)
		r.kernel.set("tcp 0.0.0.0:30081")
		r.expect(late)
	})
}

// A UDP socket without a peer may be a client's, so it must stay for a while.
func TestUDPClient(t *testing.T) {
	bubble(t, func(r *rig) {
		r.kernel.set("udp 0.0.0.0:30053")
		r.apply(lb.IPv4, "dns/dns 30053/udp")
		r.expect(time.Second)
		r.kernel.set()
		r.expect(10 * time.Second)
		r.kernel.set("udp 0.0.0.0:30053")
		for range 50 { // endless other changes must not keep it from being confirmed
			r.apply(lb.IPv4, "shop/web 30080/tcp", "-30081/tcp")
			r.apply(lb.IPv4, "shop/web 30081/tcp", "-30080/tcp")
			time.Sleep(100 * time.Millisecond)
		}
		r.apply(lb.IPv4, "dns/new 30053/udp")
		for range 50 {
			r.apply(lb.IPv4, "shop/web 30080/tcp", "-30081/tcp")
			r.apply(lb.IPv4, "shop/web 30081/tcp", "-30080/tcp")
			time.Sleep(100 * time.Millisecond)
		}
		r.expect(0, "dns/new 30053/udp 0.0.0.0:30053")
		// Another client in each look.
		r.kernel.set("tcp 0.0.0.0:1", "udp 0.0.0.0:30054")
		r.apply(lb.IPv4, "dns/new 30054/udp")
		r.expect(time.Second)
		r.kernel.set("udp 0.0.0.0:30054")
		r.expect(3 * time.Second)
		r.kernel.set("tcp 0.0.0.0:1", "udp 0.0.0.0:30054")
		r.expect(3 * time.Second)
		r.expect(4*time.Second, "dns/new 30054/udp 0.0.0.0:30054")
	})
}

// An error is reported once, keeps the known state, and ends nothing.
func TestErrors(t *testing.T) {
	bubble(t, func(r *rig) {
		r.kernel.set("tcp 0.0.0.0:30080")
		r.apply(lb.IPv4, "shop/web 30080/tcp")
		r.expect(soon, "shop/web 30080/tcp 0.0.0.0:30080")
		r.kernel.fail(errors.New("out of memory"))
		r.apply(lb.IPv4, "shop/other 30081/tcp")
		r.expect(5 * late)
		if n := strings.Count(r.log.String(), "out of memory"); n != 1 {
			t.Errorf("told %d times: %s", n, r.log.String())
		}
		r.kernel.fail(nil)
		r.kernel.set("tcp 0.0.0.0:30080", "tcp 0.0.0.0:30081")
		r.expect(late, "shop/other 30081/tcp 0.0.0.0:30081")
	})
}

// Applied takes only time proportional to the changes, even while no check runs.
func TestAppliedDoesNotBlock(t *testing.T) {
	w := newWatcher(Config{}, &fakeKernel{})
	o := w.Observer(lb.IPv4)
	for i := range 3000 {
		k := lb.Key{Port: uint16(30000 + i%2768), Proto: lb.TCP}
		o.Applied([]lb.Change{{Key: k, New: &lb.Frontend{Key: k, Kind: lb.NodePort, Service: fmt.Sprint("s", i)}}})
	}
	if len(w.fresh) != 2768 || len(w.rows[lb.IPv4]) != 2768 {
		t.Errorf("%d fresh ports, %d rows", len(w.fresh), len(w.rows[lb.IPv4]))
	}
}

// Where NodePorts answer on loopback, too, a program there conflicts; where they answer on one
// address, others do not.
func TestServes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.Serves = func(a netip.Addr) bool { return a.IsLoopback() }
		r.kernel.set("tcp 127.0.0.1:30080", "tcp 192.0.2.1:30080", "tcp [::ffff:127.0.0.1]:30080")
		r.apply(lb.IPv4, "shop/web 30080/tcp")
		r.expect(soon, "shop/web 30080/tcp 127.0.0.1:30080", "shop/web 30080/tcp [::ffff:127.0.0.1]:30080")
	})
}

// A frontend at an address of the node takes the port from programs that listen there, also from
// this process; at other addresses it takes nothing from programs of this node.
func TestNodeAddress(t *testing.T) {
	for _, c := range []struct {
		name, row, socket string
		collides          bool
	}{
		{"all IPv4 addresses", "192.0.2.1:2379/tcp", "tcp 0.0.0.0:2379", true},
		{"all addresses", "192.0.2.1:2379/tcp", "tcp [::]:2379", true},
		{"all IPv6 addresses", "192.0.2.1:2379/tcp", "tcp [::]:2379 only", false},
		{"that address", "192.0.2.1:2379/tcp", "tcp 192.0.2.1:2379", true},
		{"that address, mapped", "192.0.2.1:2379/tcp", "tcp [::ffff:192.0.2.1]:2379", true},
		{"another address", "192.0.2.1:2379/tcp", "tcp 192.0.2.2:2379", false},
		{"loopback", "192.0.2.1:2379/tcp", "tcp 127.0.0.1:2379", false},
		{"another port", "192.0.2.1:2379/tcp", "tcp 0.0.0.0:2380", false},
		{"another protocol", "192.0.2.1:2379/sctp", "tcp 0.0.0.0:2379", false},
		{"IPv6", "[2001:db8::1]:2379/tcp", "tcp [::]:2379 only", true},
		{"IPv6 and IPv4", "[2001:db8::1]:2379/tcp", "tcp 0.0.0.0:2379", false},
		{"UDP", "192.0.2.1:53/udp", "udp 0.0.0.0:53", true},
		{"an address that the node does not have", "192.0.2.9:2379/tcp", "tcp 0.0.0.0:2379", false},
		{"load balancer", "192.0.2.1:2379/tcp lb", "tcp 0.0.0.0:2379", true},
		{"cluster IP", "192.0.2.1:2379/tcp cluster", "tcp 0.0.0.0:2379", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.kernel.has("192.0.2.1", "192.0.2.2", "2001:db8::1")
				r.kernel.set(c.socket)
				r.kernel.own = []uint32{100}
				r.apply(lb.IPv4, "shop/web "+c.row)
				var want []string
				if c.collides {
					want = []string{"shop/web " + strings.Fields(c.row)[0] + " " + strings.Fields(c.socket)[1]}
				}
				r.expect(4*time.Second, want...)
				if !c.collides && strings.Contains(c.row, "192.0.2.9") && len(r.kernel.asked) > 0 {
					t.Errorf("asked for %q", r.kernel.asked)
				}
			})
		})
	}
}

// Once for each state, in one line for each Service however many ports it takes; an address that
// the node gets later counts from the next look on.
func TestNodeAddressOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.kernel.has("192.0.2.1")
		var sockets, rows []string
		for i := range 1000 {
			sockets = append(sockets, fmt.Sprintf("tcp 0.0.0.0:%d", 2000+i))
			rows = append(rows, fmt.Sprintf("shop/many:p%d 192.0.2.1:%d/tcp", i, 2000+i),
				fmt.Sprintf("shop/far:p%d 192.0.2.9:%d/tcp", i, 2000+i))
		}
		r.kernel.set(sockets...)
		r.apply(lb.IPv4, rows...)
		r.expect(soon, "shop/many:p0 192.0.2.1:2000/tcp 0.0.0.0:2000 and 999")
		r.apply(lb.IPv4, rows...)
		r.expect(2 * late)
		r.kernel.has("192.0.2.1", "192.0.2.9")
		r.expect(late, "shop/far:p0 192.0.2.9:2000/tcp 0.0.0.0:2000 and 999")
		r.kernel.lose(errors.New("out of memory")) // the known state stays
		r.expect(2 * late)
		r.kernel.lose(nil)
		r.expect(late)
		r.kernel.has("192.0.2.1")
		r.expect(late)
		r.kernel.has("192.0.2.1", "192.0.2.9")
		r.expect(late, "shop/far:p0 192.0.2.9:2000/tcp 0.0.0.0:2000 and 999")
		for i := range rows {
			rows[i] = "-" + strings.Fields(rows[i])[1]
		}
		r.apply(lb.IPv4, rows...)
		r.expect(late)
		if len(r.addrs)+len(r.reported)+len(r.fresh) > 0 {
			t.Errorf("what went is remembered: %d addresses, %d told, %d fresh", len(r.addrs), len(r.Watcher.reported),
				len(r.fresh))
		}
	})
}

// A frontend at an address of the node that answers NodePorts takes the port of another Service's
// NodePort, whichever is first.
func TestNodeAddressTakesNodePort(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.Serves = func(a netip.Addr) bool { return a.String() != "192.0.2.2" }
		r.kernel.has("192.0.2.1", "192.0.2.2", "2001:db8::1")
		r.apply(lb.IPv4, "shop/web:http 30080/tcp")
		r.apply(lb.IPv4, "evil/a:x 192.0.2.1:30080/tcp")
		r.expect(soon, "evil/a:x 192.0.2.1:30080/tcp shop/web:http")
		r.apply(lb.IPv4, "evil/b:x 192.0.2.2:30080/tcp") // answers no NodePorts
		r.apply(lb.IPv6, "evil/b:x [2001:db8::1]:30080/tcp")
		r.expect(late)
		r.apply(lb.IPv6, "shop/web:http 30080/tcp")
		r.expect(soon, "evil/b:x [2001:db8::1]:30080/tcp shop/web:http")
		r.apply(lb.IPv4, "shop/web:http 30081/tcp", "shop/web:other 192.0.2.1:30081/tcp") // its own
		r.expect(late)
		r.apply(lb.IPv4, "shop/new:http 30080/tcp")
		r.expect(soon, "evil/a:x 192.0.2.1:30080/tcp shop/new:http")
		r.apply(lb.IPv4, "-192.0.2.1:30080/tcp")
		r.expect(late)
	})
}

// A claim of the node's own address that ends before the next check is reported, each time it is
// made (TN-83).
func TestShortClaimsTN83(t *testing.T) {
	bubble(t, func(r *rig) {
		r.kernel.has("172.18.0.2")
		r.kernel.set("tcp 0.0.0.0:10250", "udp 0.0.0.0:53")
		for range 50 {
			r.apply(lb.IPv4, "tenant/x 172.18.0.2:10250/tcp")
			time.Sleep(90 * time.Millisecond)
			r.apply(lb.IPv4, "-172.18.0.2:10250/tcp")
			r.expect(time.Second, "tenant/x 172.18.0.2:10250/tcp 0.0.0.0:10250")
		}
		// A NodePort.
		r.apply(lb.IPv4, "tenant/n 10250/tcp", "-10250/tcp")
		r.expect(time.Second, "tenant/n 10250/tcp 0.0.0.0:10250")
		// The socket of UDP has to be old enough.
		r.apply(lb.IPv4, "tenant/u 172.18.0.2:53/udp", "-172.18.0.2:53/udp")
		r.expect(time.Second)
		r.expect(10*time.Second, "tenant/u 172.18.0.2:53/udp 0.0.0.0:53")
		// Sockets that cannot be listed now are listed at the next look.
		r.kernel.fail(errors.New("busy"))
		r.apply(lb.IPv4, "tenant/x 172.18.0.2:10250/tcp", "-172.18.0.2:10250/tcp")
		r.expect(time.Second)
		r.kernel.fail(nil)
		r.apply(lb.IPv4, "tenant/n 30000/tcp") // wakes it
		r.expect(time.Second, "tenant/x 172.18.0.2:10250/tcp 0.0.0.0:10250")
	})
}
