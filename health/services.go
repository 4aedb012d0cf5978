package health

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kube-proxy/internal/listen"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
)

// ServicesConfig configures [Services]. All must be set; functions are called from several
// goroutines at once.
type ServicesConfig struct {
	// Healthy reports whether the rules in the kernel are up to date: [Server.Healthy].
	Healthy func() bool
	// Addresses returns the listen addresses: addresses of this machine, or an unspecified one for
	// all of its family; none disables listening. [ListenAddrs] computes the list.
	Addresses func() []netip.Addr
	// OnListenFailed is called when the port of a Service "ns/name" cannot be bound (EV-05): once,
	// not at each try, until it can or the Service or its port changes.
	OnListenFailed func(service string, port uint16, err error)
	// Log is where failures are logged.
	Log *slog.Logger
}

// Services serves the healthCheckNodePorts of all Services. Make it with [NewServices].
type Services struct {
	cfg  ServicesConfig
	http *http.Server
	open func(context.Context, listen.Address) (net.Listener, error)
	wake chan struct{} // has a value when Run should look
	// failures limits the log lines and events about ports that fail or work again.
	failures *ratelimit.Limiter

	mu    sync.RWMutex
	ports map[uint16]*port
	dirty map[uint16]struct{} // ports that Run must look at
	all   bool                // it must check all ports
}

// port is one healthCheckNodePort. Frontends of both families share it and its listeners.
type port struct {
	number uint16

	// Guarded by Services.mu. The frontends are those in force, IPv4's first; both nil after the
	// Service was deleted.
	rows    [2]*lb.Frontend
	service string // that answers, or was the last to

	// Used by Run alone.
	bound listen.Binding
	fault fault
}

// fault is why a port is not served.
type fault struct {
	service  string        // whose port fails; "" if none does
	reported bool          // it was logged and reported
	delay    time.Duration // from the last try to the next
	next     time.Time
}

// The time from one try to bind a port to the next, which doubles.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// inspectAgain is how often the addresses of this machine are listed: there is no notification of
// changes.
const inspectAgain = 30 * time.Second

// NewServices returns a Services without any Service.
func NewServices(cfg ServicesConfig) *Services {
	s := &Services{cfg: cfg, open: listen.OwnShare().Limited(listen.Open), wake: make(chan struct{}, 1),
		failures: ratelimit.New(cfg.Log, "Health check port cannot listen"), ports: map[uint16]*port{},
		dirty: map[uint16]struct{}{}}
	s.http = newHTTP("health-check ports of Services", http.HandlerFunc(s.serve), cfg.Log)
	s.http.BaseContext = func(l net.Listener) context.Context {
		return context.WithValue(context.Background(), portKey{}, l.(portListener).port)
	}
	return s
}

// portListener is a listener with its Service port.
type portListener struct {
	net.Listener
	port *port
}

func (s *Services) newPort(number uint16) *port {
	p := &port{number: number}
	p.bound = listen.Binding{
		Open:   func(ctx context.Context, at listen.Address) (net.Listener, error) { return s.open(ctx, at) },
		Serve:  func(l net.Listener) error { return s.http.Serve(portListener{l, p}) },
		Broke:  broke(s.cfg.Log),
		Reopen: func() { s.touch(p) },
	}
	return p
}

// Observer receives the changes in force from one family's engine (HT-16).
type Observer struct {
	s *Services
	i int
}

// Observer returns the observer for the engine of that family, IPv4 or IPv6.
func (s *Services) Observer(f lb.Family) *Observer {
	o := &Observer{s: s}
	if f == lb.IPv6 {
		o.i = 1
	}
	return o
}

// Applied records changes that the kernel has accepted. Answers change at once; [Services.Run]
// opens and closes the listeners. It does not block.
func (o *Observer) Applied(changes []lb.Change) {
	s, locked, changed := o.s, false, false
	for _, c := range changes {
		if !c.Key.IsNodePort() || c.Key.Proto != lb.TCP {
			continue
		}
		if !locked { // once
			locked = true
			s.mu.Lock()
		}
		row := c.New
		if !row.Accepts() {
			row = nil
		}
		changed = s.set(o.i, c.Key.Port, row) || changed
	}
	if locked {
		s.mu.Unlock()
	}
	if changed {
		s.ring()
	}
}

// set makes f the frontend of a family for a port; nil if it has none. It reports whether that is a
// change. s.mu is held. The change's Old does not count: it is only a hint.
func (s *Services) set(i int, number uint16, f *lb.Frontend) (changed bool) {
	p := s.ports[number]
	if p == nil {
		if f == nil {
			return false
		}
		p = s.newPort(number)
		s.ports[number] = p
	}
	if p.rows[i] == f {
		return false
	}
	p.rows[i] = f
	for _, f := range p.rows {
		if f != nil { // if two Services share it, which the API server prevents, that of IPv4
			p.service = f.Service
			break
		}
	}
	s.dirty[number] = struct{}{}
	return true
}

// AddressesChanged reports a new result of ServicesConfig.Addresses. It does not block.
func (s *Services) AddressesChanged() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
	s.ring()
}

func (s *Services) touch(p *port) {
	s.mu.Lock()
	s.dirty[p.number] = struct{}{}
	s.mu.Unlock()
	s.ring()
}

func (s *Services) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run opens and closes listeners until ctx is done, and finishes open requests. It may be called
// once.
func (s *Services) Run(ctx context.Context) {
	defer s.end()
	failing := map[uint16]*port{} // ports that wait for their next try
	again := time.NewTicker(inspectAgain)
	defer again.Stop()
	for {
		var retry <-chan time.Time
		if next := nextTry(failing); !next.IsZero() {
			retry = time.After(time.Until(next))
		}
		var ports []*port
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			ports = s.take()
		case <-retry:
			now := time.Now()
			for _, p := range failing {
				if !p.fault.next.After(now) {
					ports = append(ports, p)
				}
			}
		case <-again.C:
			ports = s.well(failing)
		}
		if len(ports) == 0 {
			continue
		}
		addresses := s.addresses()
		for _, p := range ports {
			s.reconcile(ctx, p, addresses)
			if p.fault.service != "" {
				failing[p.number] = p
			} else {
				delete(failing, p.number)
			}
		}
	}
}

func nextTry(failing map[uint16]*port) time.Time {
	var next time.Time
	for _, p := range failing {
		if next.IsZero() || p.fault.next.Before(next) {
			next = p.fault.next
		}
	}
	return next
}

// well returns the ports that are not failing.
func (s *Services) well(failing map[uint16]*port) []*port {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var ports []*port
	for n, p := range s.ports {
		if failing[n] != p {
			ports = append(ports, p)
		}
	}
	return ports
}

// take returns the ports to look at.
func (s *Services) take() []*port {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ports []*port
	if s.all {
		ports = slices.Collect(maps.Values(s.ports))
	} else {
		for n := range s.dirty {
			if p := s.ports[n]; p != nil {
				ports = append(ports, p)
			}
		}
	}
	s.dirty, s.all = map[uint16]struct{}{}, false // a fresh map: one that was large costs its largest past size
	return ports
}

// reconcile makes a port listen where it should.
func (s *Services) reconcile(ctx context.Context, p *port, addresses func(uint16) []listen.Address) {
	s.mu.Lock()
	service, gone := p.service, p.rows == [2]*lb.Frontend{}
	if gone {
		delete(s.ports, p.number) // the next Service with this number is another
	}
	s.mu.Unlock()
	if gone {
		p.bound.Close()
		p.fault = fault{}
		return
	}
	err := p.bound.Rebind(ctx, addresses(p.number))
	switch {
	case ctx.Err() != nil:
	case err == nil:
		if p.fault.reported {
			s.cfg.Log.Info("Health check port works again", "service", service, "port", p.number)
		}
		p.fault = fault{}
	default:
		s.failed(p, service, err)
	}
}

// failed plans the next try, and reports a new failure.
func (s *Services) failed(p *port, service string, err error) {
	known := p.fault.service == service
	p.fault.service = service
	p.fault.delay = min(max(2*p.fault.delay, firstRetry), lastRetry)
	p.fault.next = time.Now().Add(p.fault.delay)
	if known {
		return
	}
	p.fault.reported = s.failures.Allow(lb.NamespaceOf(service))
	if !p.fault.reported {
		return
	}
	s.cfg.Log.Error("Health check port cannot listen, retrying", "service", service, "port", p.number, "err", err)
	s.cfg.OnListenFailed(service, p.number, err)
}

func (s *Services) end() {
	s.mu.RLock()
	ports := slices.Collect(maps.Values(s.ports))
	s.mu.RUnlock()
	for _, p := range ports {
		p.bound.Close()
	}
	listen.ShutDown(s.http, lastWords)
}

// addresses returns where each port must be listened at.
func (s *Services) addresses() func(port uint16) []listen.Address {
	v4, v6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	addrs := slices.SortedFunc(slices.Values(s.cfg.Addresses()), netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	all4, all6 := slices.Contains(addrs, v4), slices.Contains(addrs, v6)
	return func(port uint16) []listen.Address {
		if all4 && all6 { // one socket for both, or for IPv4 where the kernel has no other
			return []listen.Address{{Network: "tcp", At: netip.AddrPortFrom(v4, port)}}
		}
		var out []listen.Address
		for _, a := range addrs {
			switch all := all4 && a.Is4() || all6 && a.Is6(); {
			case all && !a.IsUnspecified():
			case a.Is4():
				out = append(out, listen.Address{Network: "tcp4", At: netip.AddrPortFrom(a, port)})
			default:
				out = append(out, listen.Address{Network: "tcp6", At: netip.AddrPortFrom(a, port)})
			}
		}
		return out
	}
}

// ListenAddrs returns the addresses for ServicesConfig.Addresses (HT-14): the addresses of this
// machine that answer NodePorts, which means that they are in the prefixes of [lb.Node] of any
// served family. A /0 gives the unspecified address of its family. Link-local addresses are left
// out: no load balancer uses them.
func ListenAddrs(nodePorts []netip.Prefix, local []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, p := range nodePorts {
		if p.Bits() == 0 {
			out = append(out, p.Masked().Addr())
			continue
		}
		for _, a := range local {
			a = a.Unmap()
			if p.Contains(a.WithZone("")) && !a.IsLinkLocalUnicast() && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out
}
