// Package relay moves bytes between clients and backends: connections of TCP and SCTP, and sessions
// of UDP. It knows sockets but no Services: a [Balancer] chooses the backends.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"kube-proxy/lb"
)

// Client is the peer that opens a connection or begins a session.
type Client struct {
	// Addr is its source address.
	Addr netip.AddrPort
	// Local is the address that it connected to: the original destination if the kernel remembers
	// one (SO_ORIGINAL_DST), else that of the listener.
	Local netip.AddrPort
	// Again marks a UDP session that has begun before and whose backend could not be reached.
	Again bool
}

// Balancer chooses the backends of a listener's clients. It is called from many goroutines at a
// time. It must not block, because a loop with thousands of connections waits for it, and must not
// call the relay.
type Balancer interface {
	// Pick returns the backend for a new connection or session. tried lists the backends that could
	// not be reached for it, in the order of the attempts; it is valid during the call. The zero
	// address means that no other backend is worth an attempt: the connection is reset. A datagram
	// is dropped, because a socket cannot refuse one.
	Pick(c Client, tried []netip.AddrPort) netip.AddrPort
	// Dialled reports how an attempt to reach the backend ended: nil for a completed handshake,
	// after which there is no other attempt. It is not called for attempts that prove nothing about
	// the backend: the client or the backend left, descriptors ran out, or the client's TTL may be
	// the cause.
	Dialled(c Client, backend netip.AddrPort, err error)
	// Serves reports whether clients that have the backend may keep it. If not, a session of UDP
	// ends at the next datagram, and a connection after [Config.Grace].
	Serves(backend netip.AddrPort) bool
}

// Listening is one socket that clients reach.
type Listening struct {
	Proto lb.Proto
	// Addr is the address to listen at. Port 0 requests any port; [Listener.Addr] returns it.
	Addr netip.AddrPort
}

// ErrClosed is the error of Listen after Drain or Close.
var ErrClosed = errors.New("the relay is closed")

// Config configures a relay. The zero Config is usable.
type Config struct {
	// Log receives messages for the operator, at a rate that clients cannot raise; nil for none.
	Log *slog.Logger
	// Descriptors limits those of open connections; nil is five eighths of the process's, for this
	// relay alone.
	Descriptors *Budget
	// DialTimeout is the limit of one attempt to reach a backend, 0 for DefaultDialTimeout.
	// DialTotal is the time after the first one in which others may begin, 0 for DefaultDialTotal.
	DialTimeout, DialTotal time.Duration
	// KeepAlive is the silence after which the kernel probes a peer, 0 for DefaultKeepAlive. A peer
	// that does not answer loses its connection after twice that time.
	KeepAlive time.Duration
	// TCPIdle returns the time without a byte in either direction after which a connection of TCP
	// is reset, 0 for never; nil is never. It is called once a minute, so that it may change.
	// Keep-alive probes do not count. Linux only.
	TCPIdle func() time.Duration
	// Grace is how long a connection may last after its backend stopped to serve, 0 for no limit.
	// The relay may close it up to an eighth of Grace later.
	Grace time.Duration
	// UDPIdle is the silence after which a session of UDP ends, 0 for DefaultUDPIdle.
	UDPIdle time.Duration
	// Direct reports whether clients of TCP may connect to a listener's own port. Otherwise clients
	// that conntrack has not translated are reset. Nil: all clients may. It must not block.
	Direct func(p lb.Proto, port uint16) bool
	// Mark is the packet mark (SO_MARK) of all packets to backends, including the handshake; 0 for
	// none. The rules recognise the proxy's own packets by it. Only Linux has marks.
	Mark uint32
}

// Defaults of the zero Config.
const (
	DefaultDialTimeout = 2 * time.Second // one lost SYN is sent again after a second
	DefaultDialTotal   = 10 * time.Second
	DefaultKeepAlive   = time.Minute
	DefaultUDPIdle     = 250 * time.Millisecond // --udp-timeout
)

func (c Config) withDefaults() Config {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.DialTimeout = cmp.Or(c.DialTimeout, DefaultDialTimeout)
	c.DialTotal = cmp.Or(c.DialTotal, DefaultDialTotal)
	c.KeepAlive = cmp.Or(c.KeepAlive, DefaultKeepAlive)
	c.UDPIdle = cmp.Or(c.UDPIdle, DefaultUDPIdle)
	if c.Descriptors == nil {
		c.Descriptors = NewBudget(0)
	}
	if c.TCPIdle == nil {
		c.TCPIdle = func() time.Duration { return 0 }
	}
	return c
}

// inspectEvery is the interval of the search for connections that are past a limit.
func inspectEvery(limit time.Duration) time.Duration { return max(limit/16, 10*time.Millisecond) }

// connEngine serves protocols whose connections outlive their listeners, and counts what it does.
type connEngine interface {
	// listen begins to serve. The error of a port in use wraps syscall.EADDRINUSE, that of an
	// unknown protocol errors.ErrUnsupported.
	listen(l *Listener, at Listening) (socket, netip.AddrPort, error)
	stats() (tcp, sctp Connections)
	// stop ends all connections, and frees everything before it returns.
	stop()
	// end ends all connections. It does not wait.
	end()
}

// socket is an engine's part of one listener.
type socket interface {
	// close accepts no new clients; the port is free when it returns. Open connections continue.
	// Any goroutine may call it at any time, also again.
	close()
}

// Relay is the listeners of a process in one network namespace. Its methods are safe for concurrent
// use.
type Relay struct {
	cfg Config
	ns  namespace

	ports *sourcePorts
	conns connEngine
	udp   *udpEngine

	mu        sync.Mutex
	closed    bool
	listeners map[*Listener]struct{}
}

// New returns a relay whose sockets, including those to backends, are in the network namespace of
// the calling thread.
func New(cfg Config) (*Relay, error) {
	ns, err := currentNamespace()
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := &Relay{cfg: cfg.withDefaults(), ns: ns, listeners: map[*Listener]struct{}{},
		ports: &sourcePorts{most: int64(EphemeralPorts()), to: map[portsKey]*Budget{},
			clients: map[clientPortsKey]*clientPorts{}}}
	r.udp = newUDP(r, newUDPBudget(maxSessionFiles(), EphemeralPorts()))
	r.conns, err = newConns(r)
	if err != nil {
		ns.close()
		return nil, fmt.Errorf("relay: %w", err)
	}
	return r, nil
}

// Listen serves clients at an address. Their descriptors count for group too; nil is a group of its
// own. The error of a port in use wraps syscall.EADDRINUSE, that of an unknown protocol
// errors.ErrUnsupported.
func (r *Relay) Listen(at Listening, b Balancer, group *Group) (*Listener, error) {
	if group == nil {
		group = NewGroup()
	}
	l := &Listener{relay: r, group: group}
	l.SetBalancer(b)
	listen := r.conns.listen
	switch at.Proto {
	case lb.UDP:
		listen = r.udp.listen
	case lb.TCP, lb.SCTP:
	default:
		return nil, fmt.Errorf("relay: listen at %v: protocol %v: %w", at.Addr, at.Proto, errors.ErrUnsupported)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("relay: listen at %v/%v: %w", at.Addr, at.Proto, ErrClosed)
	}
	var err error
	l.socket, l.at, err = listen(l, at)
	if err != nil {
		return nil, fmt.Errorf("relay: listen at %v/%v: %w", at.Addr, at.Proto, err)
	}
	r.listeners[l] = struct{}{}
	return l, nil
}

// drainPoll is the interval at which Drain checks for open connections.
const drainPoll = 20 * time.Millisecond

const (
	// maxAttempts bounds how many backends are tried for one client.
	maxAttempts = 32
	// keepAliveProbes is the number of unanswered probes after which a peer counts as gone.
	keepAliveProbes = 4
	// acceptPause is how long a listener stops accepting when descriptors run out.
	acceptPause = 50 * time.Millisecond
)

// StopAccepting accepts no new clients; the ports are free when it returns. Open connections
// continue.
func (r *Relay) StopAccepting() {
	r.mu.Lock()
	r.closed = true
	listeners := r.listeners
	r.listeners = map[*Listener]struct{}{}
	r.mu.Unlock()
	for l := range listeners {
		l.socket.close()
	}
}

// Drain accepts no new clients, waits until the last connection has ended or ctx is done, and then
// ends the rest, whose number it returns. It does not wait for sessions of UDP, which have no end
// of their own.
func (r *Relay) Drain(ctx context.Context) (left int) {
	r.StopAccepting()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		tcp, sctp := r.conns.stats()
		left = int(tcp.Open + sctp.Open)
		if left == 0 || ctx.Err() != nil {
			r.conns.end()
			return left
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// Close ends everything at once, and frees the relay's resources before it returns.
func (r *Relay) Close() {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	r.Drain(done)
	r.conns.stop()
	r.udp.work.Wait() // the goroutines of the listeners, which are closed
	r.ns.close()
}

// Stats returns the relay's open connections and sessions, and its counts since New.
func (r *Relay) Stats() Stats {
	tcp, sctp := r.conns.stats()
	return Stats{TCP: tcp, SCTP: sctp, UDP: r.udp.count.read()}
}

// Listener is one address at which clients are served. Its methods are safe for concurrent use.
type Listener struct {
	relay   *Relay
	group   *Group
	socket  socket
	at      netip.AddrPort
	current atomic.Pointer[Balancer]
}

// Addr returns the address at which it listens.
func (l *Listener) Addr() netip.AddrPort { return l.at }

// SetBalancer replaces the Balancer.
func (l *Listener) SetBalancer(b Balancer) { l.current.Store(&b) }

func (l *Listener) balancer() Balancer { return *l.current.Load() }

// Close accepts no new clients; the port is free when it returns. Open connections continue.
// Sessions of UDP end.
func (l *Listener) Close() {
	l.socket.close()
	l.relay.mu.Lock()
	delete(l.relay.listeners, l)
	l.relay.mu.Unlock()
}
