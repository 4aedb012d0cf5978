// Package localhost serves TCP NodePorts at 127.0.0.1 and ::1 for planes that translate packets,
// because the kernel does not route a packet from a loopback address to another host. A [Proxy]
// listens there for each NodePort, and opens its own connections to the endpoints (KEP-6032). It
// follows the frontends that a plane has applied, and needs nothing from the packet filter.
//
//	client ──▶ 127.0.0.1:30080 ──relay──▶ 10.1.2.14:8080
//
// A NodePort has a listener while its route for all other sources balances over endpoints: with the
// external traffic policy Local, while this node has an endpoint. The Proxy retries a port that
// another program holds. Connections outlive their endpoint and their Service, as those that the
// kernel translates do, and end with the process.
package localhost

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/balance"
	"kube-proxy/plane/internal/relay"
)

// Config configures a Proxy.
type Config struct {
	// Mark is the packet mark of connections to endpoints; 0 for none.
	Mark uint32
	// Descriptors limits the descriptors of listeners and connections. Proxies of one process share
	// it.
	Descriptors *relay.Groups
	// Log receives failures to listen; nil discards them.
	Log *slog.Logger
}

// Proxy serves the NodePorts of one IP family. A nil Proxy serves none. Its methods are safe for
// concurrent use.
type Proxy struct {
	log         *slog.Logger
	reports     *ratelimit.Limiter
	descriptors *relay.Groups
	relay       *relay.Relay

	mu       sync.Mutex
	at       netip.Addr // invalid: nothing is served
	rows     map[uint16]*lb.Frontend
	doors    map[uint16]*door
	balance  *balance.Balance
	failing  map[uint16]error // ports with a frontend that lack their listener
	failures uint64
	retry    *time.Timer // nil unless a port fails
	pause    time.Duration
	closed   bool
}

// door is a listener.
type door struct {
	service  string // "ns/name:port"
	listener *relay.Listener
	turns    *balance.Set
}

// lasting are the backends of a listener whose connections outlive them.
type lasting struct{ *balance.Set }

// Serves is part of [relay.Balancer].
func (lasting) Serves(netip.AddrPort) bool { return true }

// New returns a Proxy whose sockets are in the network namespace of the calling thread. It serves
// nothing yet.
func New(cfg Config) (*Proxy, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	r, err := relay.New(relay.Config{Log: cfg.Log, Descriptors: cfg.Descriptors.Budget(), Mark: cfg.Mark})
	if err != nil {
		return nil, fmt.Errorf("localhost NodePorts: %w", err)
	}
	return &Proxy{log: cfg.Log, reports: ratelimit.New(cfg.Log, "localhost NodePort without listener"),
		descriptors: cfg.Descriptors, relay: r,
		rows: map[uint16]*lb.Frontend{}, doors: map[uint16]*door{}, balance: balance.New(balance.Config{}),
		failing: map[uint16]error{}, pause: firstPause}, nil
}

// Close closes all listeners and connections. A second call does nothing.
func (p *Proxy) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	was := p.closed
	p.closed = true
	p.rest()
	p.mu.Unlock()
	if !was {
		p.relay.Close()
	}
}

// Reset serves exactly the frontends of the table, at the address that its node names.
func (p *Proxy) Reset(want *lb.Table) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.rows
	p.at, p.rows = want.Node.Localhost, map[uint16]*lb.Frontend{}
	for f := range want.All() {
		if isOurs(f.Key) {
			p.rows[f.Key.Port] = f
		}
	}
	for port := range before {
		if p.rows[port] == nil {
			p.serve(port)
		}
	}
	for port := range p.rows {
		p.serve(port)
	}
}

// SetNode serves the same frontends at the address that the node names.
func (p *Proxy) SetNode(n lb.Node) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == n.Localhost {
		return
	}
	p.at = n.Localhost
	for port := range p.rows {
		p.serve(port)
	}
}

// Apply updates the listeners for the changes. Its cost follows the changes.
func (p *Proxy) Apply(changes []lb.Change) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range changes {
		port := c.Key.Port
		if !isOurs(c.Key) || p.rows[port] == c.New {
			continue
		}
		p.rows[port] = c.New
		if c.New == nil {
			delete(p.rows, port)
		}
		p.serve(port)
	}
}

func isOurs(k lb.Key) bool { return k.IsNodePort() && k.Proto == lb.TCP }

// leadsTo returns the backends of a frontend's listener; nil if it has none.
func (p *Proxy) leadsTo(f *lb.Frontend) *lb.BackendSet {
	if f == nil || !p.at.IsValid() || p.closed {
		return nil
	}
	return f.Last().To
}

// serve updates a port's listener to its frontend. The caller holds the lock.
func (p *Proxy) serve(port uint16) {
	f, d := p.rows[port], p.doors[port]
	to := p.leadsTo(f)
	if d != nil && (to == nil || d.service != f.Service) {
		p.shut(port, d)
		d = nil
	}
	// Unique to the port, whatever the order of changes.
	id := lb.SetID{Service: strconv.Itoa(int(port)), Proto: lb.TCP}
	if to == nil {
		p.balance.Remove(id)
		delete(p.failing, port)
		return
	}
	turns := p.balance.Set(&lb.BackendSet{ID: id, Backends: to.Backends}, f.Affinity)
	if d == nil {
		p.open(port, f.Service, turns)
	}
}

// open creates a listener, or records the error.
func (p *Proxy) open(port uint16, service string, turns *balance.Set) {
	namespace, err := p.descriptors.Take(service)
	if err == nil {
		d := &door{service: service, turns: turns}
		at := relay.Listening{Proto: lb.TCP, Addr: netip.AddrPortFrom(p.at, port)}
		d.listener, err = p.relay.Listen(at, lasting{turns}, namespace)
		if err == nil {
			p.doors[port] = d
			delete(p.failing, port)
			return
		}
		p.descriptors.Give(service)
	}
	p.failures++
	if p.failing[port] == nil && p.reports.Allow(lb.NamespaceOf(service)) {
		p.log.Warn("Failed to listen for localhost NodePort, retrying", "service", service, "port", port, "err", err)
	}
	p.failing[port] = err
	if p.retry == nil {
		p.retry = time.AfterFunc(p.pause, p.again)
	}
}

// shut closes a listener. Its connections continue; its affinity entries are deleted.
func (p *Proxy) shut(port uint16, d *door) {
	d.listener.Close()
	p.descriptors.Give(d.service)
	delete(p.doors, port)
	p.balance.Remove(lb.SetID{Service: strconv.Itoa(int(port)), Proto: lb.TCP})
}

// The Proxy retries failed ports after firstPause, then after twice the time each, up to lastPause.
const firstPause, lastPause = time.Second, time.Minute

// again retries all failed ports.
func (p *Proxy) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retry, p.pause = nil, min(2*p.pause, lastPause)
	for port := range p.failing {
		p.serve(port)
	}
	if len(p.failing) == 0 {
		p.rest()
	}
}

// rest stops retries. The caller holds the lock.
func (p *Proxy) rest() {
	if p.retry != nil {
		p.retry.Stop()
	}
	p.retry, p.pause = nil, firstPause
}

// Stats returns the number of listeners, and the total of failures to create one.
func (p *Proxy) Stats() (listeners int, failures uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.doors), p.failures
}
