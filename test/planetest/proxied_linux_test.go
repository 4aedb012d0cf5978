package planetest

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/scenario"
	"kube-proxy/trace"
)

// ender is a plane at which TCP connections end: nftables redirects them to a socket of the node.
// Flows of UDP are masqueraded, which looks the same to the listener.
type ender struct {
	*nftables.Plane
	ns   netns.NsHandle
	self netip.Addr
	flaw string

	mu    sync.Mutex
	sets  map[lb.SetID]*listening
	conns []net.Conn
}

// HidesTracer: the kernel redirects packets to listeners of this test, and not to the backends of
// the table.
func (*ender) HidesTracer() {}

// listening is the socket of one backend set.
type listening struct {
	e *ender
	l net.Listener

	mu       sync.Mutex
	backends lb.Backends
	next     int
	sticky   bool
	met      map[netip.Addr]netip.AddrPort
}

// Flaws of an ender.
const (
	noRetry    = "does not try another backend"
	unsticky   = "knows no affinity"
	keepsOnEnd = "leaves connections when it ends"
)

func newEnder(f lb.Family, flaw string) (Plane, error) {
	p, err := nftables.New(nftables.Config{Family: f})
	if err != nil {
		return nil, err
	}
	ns, err := netns.Get()
	if err != nil {
		return nil, err
	}
	return &ender{Plane: p, ns: ns, self: netlab.Addr(netlab.Node1, f == lb.IPv6), flaw: flaw,
		sets: map[lb.SetID]*listening{}}, nil
}

func (e *ender) Apply(ctx context.Context, changes []lb.Change) (plane.ApplyResult, error) {
	var reported []lb.Change
	for _, c := range changes {
		row, err := e.lead(c.New)
		if err != nil {
			return plane.ApplyResult{}, err
		}
		reported = append(reported, lb.Change{Key: c.Key, New: row})
	}
	return e.Plane.Apply(ctx, reported)
}

func (e *ender) Reset(ctx context.Context, want *lb.Table) (plane.ResetResult, error) {
	reported := &lb.Table{Node: want.Node}
	owners := map[string][]*lb.Frontend{}
	for _, f := range want.Sorted() {
		row, err := e.lead(f)
		if err != nil {
			return plane.ResetResult{}, err
		}
		owners[f.Service] = append(owners[f.Service], row)
	}
	for name, rows := range owners {
		reported.Replace(lb.Owner{Name: name}, rows)
	}
	return e.Plane.Reset(ctx, reported)
}

// lead returns the frontend with the node's sockets in place of backends.
func (e *ender) lead(f *lb.Frontend) (*lb.Frontend, error) {
	if f == nil {
		return nil, nil
	}
	g := *f
	g.Routes = slices.Clone(f.Routes)
	for i := range g.Routes {
		r := &g.Routes[i]
		switch {
		case r.Do != lb.Balance:
		case f.Key.Proto != lb.TCP:
			r.Masq = true
		default:
			at, err := e.listen(r.To, f.Affinity > 0)
			if err != nil {
				return nil, err
			}
			r.Masq, r.To = false, &lb.BackendSet{ID: r.To.ID, Backends: lb.BackendsOf(lb.Backend{Addr: at})}
		}
	}
	if f.Key.Proto == lb.TCP {
		g.Affinity = 0
	}
	return &g, nil
}

// listen returns the address of the set's socket. The thread is in the node's namespace.
func (e *ender) listen(s *lb.BackendSet, sticky bool) (netip.AddrPort, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.sets[s.ID]
	if l == nil {
		socket, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(e.self, 0)))
		if err != nil {
			return netip.AddrPort{}, err
		}
		l = &listening{e: e, l: socket, met: map[netip.Addr]netip.AddrPort{}}
		e.sets[s.ID] = l
		go l.accept()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backends, l.sticky = s.Backends, sticky && e.flaw != unsticky
	return l.l.Addr().(*net.TCPAddr).AddrPort(), nil
}

func (l *listening) accept() {
	for {
		c, err := l.l.Accept()
		if err != nil {
			return
		}
		go l.serve(c.(*net.TCPConn))
	}
}

func (l *listening) serve(c *net.TCPConn) {
	l.e.keep(c)
	client := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
	var tried []netip.AddrPort
	for range 10 {
		to := l.pick(client, tried)
		tried = append(tried, to)
		b, err := l.e.dial(to)
		if err == nil {
			l.e.keep(b)
			l.mu.Lock()
			l.met[client] = to
			l.mu.Unlock()
			go io.Copy(c, b)
			io.Copy(b, c)
			b.Close()
			c.Close()
			return
		}
		if l.e.flaw == noRetry {
			break
		}
	}
	c.SetLinger(0)
	c.Close()
}

// pick returns the next backend in turn, whatever turns other clients take meanwhile: none that was
// tried, as long as another exists.
func (l *listening) pick(client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to, ok := l.met[client]; ok && l.sticky && l.backends.Has(to) {
		return to
	}
	var to netip.AddrPort
	for range l.backends.Len() {
		l.next++
		if to = l.backends.At(l.next % l.backends.Len()).Addr; !slices.Contains(tried, to) {
			break
		}
	}
	return to
}

// dial connects from the node. Its thread ends with it.
func (e *ender) dial(to netip.AddrPort) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = netns.Set(e.ns); err == nil {
			c, err = net.DialTimeout("tcp", to.String(), time.Second)
		}
	}()
	<-done
	return c, err
}

func (e *ender) keep(c net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns = append(e.conns, c)
}

func (e *ender) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.sets {
		l.l.Close()
	}
	if e.flaw != keepsOnEnd {
		for _, c := range e.conns {
			c.Close()
		}
	}
	return e.Plane.Close()
}

// A plane at which connections end passes, because it behaves as Config.Proxied describes; each
// flaw is found, and so is a plane at which they do not end.
func TestProxiedIsProven(t *testing.T) {
	all := load(t, "")
	labs := &pool{}
	t.Cleanup(func() {
		if err := labs.close(); err != nil {
			t.Error(err)
		}
	})
	end := func(flaw string) func(lb.Family) (Plane, error) {
		return func(f lb.Family) (Plane, error) { return newEnder(f, flaw) }
	}
	kernel := func(f lb.Family) (Plane, error) { return nftables.New(nftables.Config{Family: f}) }
	for _, c := range []struct {
		name, scenario string
		new            func(lb.Family) (Plane, error)
		found          string // part of the failure; "" for none
		shows          []Proxied
	}{
		{"addresses", "clusterip", end(""), "", []Proxied{ProxiedAddress}},
		{"policy local", "external-policy-local", end(""), "", []Proxied{ProxiedAddress}},
		{"open connections", "established-connections", end(""), "", []Proxied{ProxiedAddress}},
		{"restart", "restart", end(""), "", []Proxied{ProxiedAddress, ProxiedAffinity, ProxiedRestart}},
		{"retry", "dead-endpoint", end(""), "", []Proxied{ProxiedAddress, ProxiedReset, ProxiedRetry}},
		{"affinity", "session-affinity", end(""), "", []Proxied{ProxiedAddress}},
		{"sessions", "udp", end(""), "", nil},
		{"the kernel keeps the address", "clusterip", kernel, "saw the source", nil},
		{"the kernel keeps connections", "restart", kernel, "is still answered", nil},
		{"connections outlive it", "restart", end(keepsOnEnd), "is still answered", nil},
		{"no affinity after a restart", "restart", end(unsticky), "not the same backend", nil},
		{"no retry", "dead-endpoint", end(noRetry), "dead-endpoint.txtar", nil},
		{"the kernel does not retry", "dead-endpoint", kernel, "refused", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			i := slices.IndexFunc(all, func(s *scenario.Scenario) bool { return s.Name == c.scenario })
			if i < 0 {
				t.Fatalf("there is no scenario %s", c.scenario)
			}
			s := &suite{Config: Config{Mode: "ender", New: c.new, Proxied: true, Trace: func(lb.Family) trace.Mode {
				return trace.Mode{Terminates: true}
			}}, labs: labs, timeout: 3 * time.Second}
			result, failures, err := s.try(all[i])
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(failures, "\n")
			if c.found == "" && text != "" {
				t.Errorf("a plane that is right fails:\n%s", text)
			}
			if c.found == "" && c.shows != nil && !slices.Equal(result.Proxied, c.shows) {
				t.Errorf("what was otherwise: %q, want %q", result.Proxied, c.shows)
			}
			for _, f := range families {
				if c.found != "" && (!strings.Contains(text, ", "+f.String()) || !strings.Contains(text, c.found)) {
					t.Errorf("%v: nothing says %q:\n%s", f, c.found, text)
				}
			}
		})
	}
}

// If the kernel redirects connections, the scenario of the dead endpoint proves that clients reach
// it: a plane that hides it fails the line.
func TestDeadEndpointIsMet(t *testing.T) {
	all := load(t, "")
	labs := &pool{}
	i := slices.IndexFunc(all, func(s *scenario.Scenario) bool { return s.Name == "dead-endpoint" })
	for _, c := range []struct {
		name  string
		new   func(lb.Family) (Plane, error)
		fails bool
	}{
		{"the kernel", func(f lb.Family) (Plane, error) { return nftables.New(nftables.Config{Family: f}) }, false},
		{"who hides it", func(f lb.Family) (Plane, error) { return newEnder(f, "") }, true},
	} {
		s := &suite{Config: Config{Mode: "dead", New: c.new}, labs: labs, timeout: 3 * time.Second}
		_, failures, err := s.try(all[i])
		if err != nil {
			t.Fatal(err)
		}
		if (len(failures) > 0) != c.fails {
			t.Errorf("%s: %s", c.name, strings.Join(failures, "\n"))
		}
	}
	if err := labs.close(); err != nil {
		t.Error(err)
	}
}
