package flows

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ctwire "kube-proxy/internal/netlink/conntrack"
	"kube-proxy/lb"
	tabletext "kube-proxy/test/tables"
)

func row(key, service string) *lb.Frontend {
	k, err := tabletext.Key(key)
	if err != nil {
		panic(err)
	}
	f := &lb.Frontend{Key: k, Service: service, Kind: lb.ClusterIP}
	if k.IsNodePort() {
		f.Kind = lb.NodePort
	}
	return f
}

func tables() []Table {
	return []Table{{Family: lb.IPv4, NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Frontends: []*lb.Frontend{row("10.96.0.10:80/tcp", "shop/web:http"), row("10.96.0.10:80/udp", "shop/web:quic"),
			row("nodeport:30080/tcp", "shop/web:http")}},
		{Family: lb.IPv6, Frontends: []*lb.Frontend{row("[2001:db8:96::10]:80/tcp", "shop/web:http")}}}
}

// scripted is a feed controlled by a test.
type scripted struct {
	events chan ctwire.Entry
	lose   chan uint32
	drops  atomic.Uint32
	reads  int // of addresses
	here   map[netip.Addr]struct{}
	closed chan struct{}
}

func newScripted() *scripted {
	return &scripted{events: make(chan ctwire.Entry), lose: make(chan uint32), here: map[netip.Addr]struct{}{},
		closed: make(chan struct{})}
}

func (f *scripted) listen(each func(*ctwire.Entry), lost func()) {
	for {
		select {
		case e := <-f.events:
			each(&e)
		case n := <-f.lose:
			f.drops.Add(n)
			lost()
		case <-f.closed:
			return
		}
	}
}

func (f *scripted) dropped() (uint32, error) { return f.drops.Load(), nil }
func (f *scripted) locals(context.Context) (map[netip.Addr]struct{}, error) {
	f.reads++
	return f.here, nil
}
func (f *scripted) close() error { close(f.closed); return nil }

func (f *scripted) open(n int, to string) {
	for i := range n {
		f.events <- ctwire.Entry{Orig: ctwire.Tuple{From: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"),
			uint16(i+1)), To: netip.MustParseAddrPort(to), Proto: uint8(lb.TCP)}}
	}
}

func reported(r *Rates) string {
	s := fmt.Sprintf("elsewhere %d missed %d/%d others %d", r.Elsewhere, r.Missed, r.MissedInAll, r.Others)
	for _, rate := range r.Frontends {
		s += fmt.Sprintf(" | %s %d %.0f/s %d", rate.Frontend.Key, rate.New, rate.PerSecond, rate.Total)
	}
	return s
}

// follow returns the values of Each, until ctx ends.
func follow(ctx context.Context, top *Top) <-chan *Rates {
	rates := make(chan *Rates)
	go func() {
		defer close(rates)
		top.Each(ctx, func(r *Rates) bool {
			select {
			case rates <- r:
			case <-ctx.Done():
			}
			return true
		})
	}()
	return rates
}

// Frontends are added and deleted during a query; losses are reported once, in their period.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := []*lb.Frontend{row("10.96.0.1:80/tcp", "a"), row("nodeport:30080/tcp", "a"),
			{Key: lb.Key{Port: 32000, Proto: lb.TCP}, Service: "a", Kind: lb.HealthCheck}}
		var rows atomic.Pointer[[]*lb.Frontend]
		rows.Store(&first)
		f := newScripted()
		f.here[netip.MustParseAddr("192.0.2.1")] = struct{}{}
		f.here[netip.MustParseAddr("198.51.100.1")] = struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		rates := follow(ctx, &Top{every: 2 * time.Second, most: 2, from: f, tables: func() []Table {
			return []Table{{Family: lb.IPv4, NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				Frontends: *rows.Load()}}
		}})
		expect := func(want string) {
			t.Helper()
			if got := reported(<-rates); got != want {
				t.Errorf("told\n%s, want\n%s", got, want)
			}
		}
		f.open(6, "10.96.0.1:80")
		f.open(2, "192.0.2.1:30080")
		f.open(1, "198.51.100.1:30080") // answers no NodePorts
		f.open(1, "192.0.2.1:32000")
		f.open(1, "10.96.0.2:80") // not there yet
		expect("elsewhere 3 missed 0/0 others 0 | 10.96.0.1:80/tcp 6 3/s 6 | nodeport:30080/tcp 2 1/s 2")
		more := append(first[:2:2], row("10.96.0.2:80/tcp", "b"))
		rows.Store(&more)
		expect("elsewhere 0 missed 0/0 others 0 | 10.96.0.1:80/tcp 0 0/s 6 | nodeport:30080/tcp 0 0/s 2")
		f.lose <- 10
		f.open(4, "10.96.0.2:80")
		expect("elsewhere 0 missed 10/10 others 1 | 10.96.0.2:80/tcp 4 2/s 4 | 10.96.0.1:80/tcp 0 0/s 6")
		f.lose <- 0 // for lack of memory, without a number
		expect("elsewhere 0 missed 1/11 others 1 | 10.96.0.1:80/tcp 0 0/s 6 | 10.96.0.2:80/tcp 0 0/s 4")
		less := more[1:] // the Service is deleted, with its counts
		rows.Store(&less)
		expect("elsewhere 0 missed 0/11 others 1 | 10.96.0.1:80/tcp 0 0/s 6 | 10.96.0.2:80/tcp 0 0/s 4")
		synctest.Wait()
		f.open(2, "10.96.0.1:80")
		expect("elsewhere 2 missed 0/11 others 0 | 10.96.0.2:80/tcp 0 0/s 4 | nodeport:30080/tcp 0 0/s 2")
		if f.reads > 2 {
			t.Errorf("the addresses of this machine were read %d times in 12 s", f.reads)
		}
		cancel()
		for range rates {
		}
		synctest.Wait()
		<-f.closed
	})
}

// A connection costs no memory, whatever its destination.
func TestNoAllocs(t *testing.T) {
	c := newCount(10, time.Now())
	c.take(tables())
	c.local(map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.1"): {}})
	e := ctwire.Entry{Orig: ctwire.Tuple{Proto: uint8(lb.TCP)}}
	for _, to := range []string{"10.96.0.10:80", "192.0.2.1:30080", "192.0.2.9:30080", "198.51.100.9:1"} {
		e.Orig.To = netip.MustParseAddrPort(to)
		c.add(&e)
		if n := testing.AllocsPerRun(1000, func() { c.add(&e) }); n > 0 {
			t.Errorf("%v allocations for a connection to %s", n, to)
		}
	}
}
