package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/internal/listen"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// HT-15: retries follow after 1, 2, 4 … 60 s and at each change of the frontend.
func TestRetryHT15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, reported := &fakeOpener{}, 0
		s := newServices(ServicesConfig{OnListenFailed: func(string, uint16, error) { reported++ }})
		s.open = o.listen
		stop := runServices(t, s)
		v4 := s.Observer(lb.IPv4)
		o.Refuse("", "in use")
		start := time.Now()
		v4.Applied(set(check("shop/web", 32100, 1)))
		pass(200 * time.Second)
		if want := seconds(0, 1, 3, 7, 15, 31, 63, 123, 183); !slices.Equal(o.Tried(start), want) || reported != 1 {
			t.Errorf("tried at %v, want %v; reported %d times", o.Tried(start), want, reported)
		}
		v4.Applied(set(check("shop/web", 32100, 2)))
		synctest.Wait()
		if n := len(o.Tried(start)); n != 10 || reported != 1 {
			t.Errorf("a change made it %d tries, want 10; reported %d times", n, reported)
		}
		v4.Applied(set(check("shop/next", 32100, 2))) // another Service, with the same trouble
		synctest.Wait()
		o.Refuse("", "")
		pass(61 * time.Second)
		if reported != 2 || fmt.Sprint(o.Did()) != "[open tcp 0.0.0.0:32100]" {
			t.Errorf("reported %d times, want 2: of each Service once", reported)
		}
		o.Refuse("", "in use")
		o.kill() // the socket breaks, and cannot be opened again
		pass(61 * time.Second)
		if n := len(o.Tried(start)); reported != 3 {
			t.Errorf("after success, reported %d times, want 3; %d tries", reported, n)
		}
		v4.Applied(gone(32100))
		synctest.Wait()
		n := len(o.Tried(start))
		pass(time.Hour)
		if len(o.Tried(start)) != n {
			t.Error("it goes on trying for a Service that is gone")
		}
		stop()
	})
}

// HT-15: deleted Services do not keep others from being retried.
func TestRetryOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &fakeOpener{}
		s := newServices(ServicesConfig{})
		s.open = o.listen
		stop := runServices(t, s)
		v4 := s.Observer(lb.IPv4)
		o.Refuse("", "in use")
		const n = 20
		for i := range n {
			v4.Applied(set(check("shop/web", uint16(80+i), 1)))
		}
		pass(200 * time.Second)
		for i := range n - 1 {
			v4.Applied(gone(uint16(80 + i)))
		}
		synctest.Wait()
		before := len(o.Tried(time.Now()))
		pass(10 * time.Minute)
		if tries := len(o.Tried(time.Now())) - before; tries != 10 {
			t.Errorf("tried %d times in ten minutes, want once a minute", tries)
		}
		stop()
	})
}

// HT-14: the addresses change. Unchanged listeners stay open; new ones open before old ones close,
// except that one which contains others has to wait for them. If the new ones cannot be opened the
// old ones stay.
func TestAddressesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &fakeOpener{}
		var addrs atomic.Pointer[[]netip.Addr]
		use := func(words ...string) {
			var out []netip.Addr
			for _, w := range words {
				out = append(out, netip.MustParseAddr(w))
			}
			addrs.Store(&out)
		}
		s := newServices(ServicesConfig{Addresses: func() []netip.Addr { return *addrs.Load() }})
		s.open = o.listen
		stop := runServices(t, s)
		use("192.0.2.1", "2001:db8::1")
		s.Observer(lb.IPv4).Applied(set(check("shop/web", 80, 1)))
		synctest.Wait()
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := fmt.Sprint(o.Did()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		expect("[open tcp4 192.0.2.1:80 open tcp6 [2001:db8::1]:80]")
		for _, step := range []struct {
			addrs []string
			want  string
		}{
			{[]string{"192.0.2.2", "2001:db8::1"}, "[open tcp4 192.0.2.2:80 close 192.0.2.1:80]"},
			{[]string{"2001:db8::1", "192.0.2.2"}, "[]"},
			{[]string{"0.0.0.0", "192.0.2.2"}, "[close 192.0.2.2:80 close [2001:db8::1]:80 open tcp4 0.0.0.0:80]"},
			{[]string{"0.0.0.0", "::"}, "[close 0.0.0.0:80 open tcp 0.0.0.0:80]"},
			{[]string{"0.0.0.0", "::", "192.0.2.2"}, "[]"},
			{nil, "[close 0.0.0.0:80]"},
			{[]string{"::"}, "[open tcp6 [::]:80]"},
		} {
			use(step.addrs...)
			s.AddressesChanged()
			synctest.Wait()
			expect(step.want)
		}
		o.Refuse("[2001:db8::2]:80", "no such address")
		use("2001:db8::2")
		s.AddressesChanged()
		expect("[close [::]:80 open tcp6 [::]:80]") // it was in the way, and is back
		o.Refuse("", "no such address")
		s.AddressesChanged()
		expect("[close [::]:80]") // it was in the way, and cannot be opened again either
		o.Refuse("", "")
		pass(61 * time.Second)
		expect("[open tcp6 [2001:db8::2]:80]")
		o.Refuse("", "no such address")
		use("2001:db8::3")
		s.AddressesChanged()
		expect("[]")
		stop()
		expect("[close [2001:db8::2]:80]")
	})
}

// An observer does not wait for listeners, nor for Run.
func TestAppliedDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServices(ServicesConfig{})
		v4 := s.Observer(lb.IPv4)
		v4.Applied(set(check("shop/web", 80, 1))) // before Run
		blocked := make(chan struct{})
		o := &fakeOpener{}
		s.open = func(ctx context.Context, p listen.Address) (net.Listener, error) {
			<-blocked
			return o.listen(ctx, p)
		}
		stop := runServices(t, s)
		synctest.Wait()
		for i := range 100 {
			v4.Applied(set(check("shop/web", uint16(81+i), 1)))
			s.AddressesChanged()
		}
		close(blocked)
		synctest.Wait()
		if n := len(o.Did()); n != 101 {
			t.Errorf("%d listeners opened, want 101", n)
		}
		stop()
		v4.Applied(gone(80)) // after Run
	})
}

// Frontends other than health checks, which are nearly all, cause no read of the machine's
// addresses; neither do unchanged health checks.
func TestOtherRowsCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		s := newServices(ServicesConfig{Addresses: func() []netip.Addr {
			looks.Add(1)
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}})
		o := &fakeOpener{}
		s.open = o.listen
		runServices(t, s)
		v4 := s.Observer(lb.IPv4)
		row := check("shop/web", 80, 1)
		other := func(i int) *lb.Frontend {
			return &lb.Frontend{Key: lb.Key{Port: uint16(30000 + i), Proto: lb.TCP}, Service: "shop/other:http",
				Kind: lb.NodePort}
		}
		for i := range 100 {
			v4.Applied(set(other(i)))
			v4.Applied(gone(uint16(30000 + i)))
			synctest.Wait()
		}
		s.AddressesChanged()
		pass(time.Hour)
		if n := looks.Load(); n != 0 {
			t.Errorf("without a health check there were %d looks at the addresses", n)
		}
		v4.Applied(set(row))
		synctest.Wait()
		before := looks.Load()
		for i := range 100 {
			v4.Applied(append(set(other(i)), set(row)...))
			synctest.Wait()
		}
		if n := looks.Load() - before; n != 0 {
			t.Errorf("though nothing changed there were %d looks at the addresses", n)
		}
	})
}

// HT-14: the kernel sends no notification of a new or removed address of this machine, so the
// server checks periodically. A retry of a failed listener does not change the period.
func TestAddressComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var addr atomic.Value
		addr.Store([]netip.Addr{})
		s := newServices(ServicesConfig{Addresses: func() []netip.Addr { return addr.Load().([]netip.Addr) }})
		o := &fakeOpener{}
		s.open = o.listen
		runServices(t, s)
		s.Observer(lb.IPv4).Applied(set(check("shop/web", 80, 1)))
		pass(time.Hour)
		for _, step := range []struct{ addr, want string }{
			{"192.0.2.1", "[open tcp4 192.0.2.1:80]"}, {"192.0.2.1", "[]"},
			{"192.0.2.2", "[open tcp4 192.0.2.2:80 close 192.0.2.1:80]"},
		} {
			addr.Store([]netip.Addr{netip.MustParseAddr(step.addr)})
			pass(inspectAgain + time.Second)
			if got := fmt.Sprint(o.Did()); got != step.want {
				t.Errorf("got %s, want %s", got, step.want)
			}
		}
		o.Refuse("", "in use")
		addr.Store([]netip.Addr{netip.MustParseAddr("192.0.2.3")})
		pass(inspectAgain + time.Second)
		start, before := time.Now(), len(o.Tried(time.Now()))
		pass(10 * time.Minute)
		if n := len(o.Tried(start)) - before; n < 9 || n > 15 {
			t.Errorf("tried %d times in ten minutes, want about once a minute", n)
		}
	})
}

// A listener that breaks, and breaks again whenever it is opened, is logged and costs one try a
// second.
func TestListenerBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		opened := 0
		s := newServices(ServicesConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
		s.open = func(context.Context, listen.Address) (net.Listener, error) {
			opened++
			return broken{}, nil
		}
		runServices(t, s)
		s.Observer(lb.IPv4).Applied(set(check("shop/web", 80, 1)))
		pass(10*time.Second + time.Millisecond)
		if opened != 11 || strings.Count(log.String(), "no memory") != opened {
			t.Errorf("opened %d times in ten seconds, want 11; log:\n%s", opened, log.String())
		}
	})
}

// broken is a listener that fails at once.
type broken struct{ net.Listener }

func (broken) Accept() (net.Conn, error) { return nil, errors.New("no memory") }
func (broken) Close() error              { return nil }
func (broken) Addr() net.Addr            { return &net.TCPAddr{} }

// TN-02: however many ports of a namespace cannot listen, and however often they do, the log stays
// short and another namespace's failure is reported.
func TestManyPortsThatCannotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, reported := &fakeOpener{}, map[string]int{}
		var log bytes.Buffer
		s := newServices(ServicesConfig{Log: slog.New(slog.NewTextHandler(&log, nil)),
			OnListenFailed: func(service string, _ uint16, _ error) {
				namespace, _, _ := strings.Cut(service, "/")
				reported[namespace]++
			}})
		s.open = o.listen
		stop := runServices(t, s)
		v4 := s.Observer(lb.IPv4)
		o.Refuse("", "in use")
		for port := range uint16(1000) {
			v4.Applied(set(check(fmt.Sprint("tenant/", port), 30_000+port, 1)))
		}
		synctest.Wait()
		v4.Applied(set(check("stranger/web", 32_000, 1)))
		synctest.Wait()
		if reported["tenant"] != ratelimit.Burst || reported["stranger"] != 1 {
			t.Errorf("reported failures %v, want %d of the tenant's and the stranger's", reported, ratelimit.Burst)
		}
		stop()
		if lines := strings.Count(log.String(), "\n"); lines != ratelimit.Burst+1 {
			t.Errorf("%d lines, want %d", lines, ratelimit.Burst+1)
		}
	})
}
