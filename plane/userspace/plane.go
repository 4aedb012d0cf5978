package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/balance"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
)

// Config configures a plane.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// Redirector redirects packets to the listeners; required. The plane closes it.
	Redirector redirect.Redirector
	// Passed has the reasons why better redirectors are not used, for [Plane.Notices].
	Passed []error
	// Relay configures the sockets, except Descriptors and Direct.
	Relay relay.Config
	// FirstPort to LastPort are the ports of listeners; both 0 for any (CF-44).
	FirstPort, LastPort uint16
	// LocalhostNodePorts: NodePorts answer on 127.0.0.1, if one of [lb.Node.NodePorts] covers that
	// (SV-64).
	LocalhostNodePorts bool
	// ExternalIPsBounded reports whether the administrator limits the external IPs of Services.
	// Without a packet filter, external IPs that are not the node's are served only if it does. Nil
	// means false.
	ExternalIPsBounded func() bool
	// NoNodeEndpoints: endpoints at the node's own addresses get no connections. The kernel decides
	// which addresses these are, because tenants write EndpointSlices.
	NoNodeEndpoints bool
	// CountServices enables counts of connections and sessions by service port.
	CountServices bool
	// Descriptors limits the descriptors of listeners and connections, for all planes of the
	// process that share it; nil for a limit of its own.
	Descriptors *relay.Groups
}

// maxBatchWeight is the maximum weight of an Apply. Most of its time is for opening listeners,
// about 30 µs each.
const maxBatchWeight = 2000

// Plane serves one family. One goroutine at a time may call its methods; another one may call
// Drift, Measure, Answers and Drain.
type Plane struct {
	cfg      Config
	relay    relayer
	redirect redirect.Redirector
	// addresses is redirect where listeners are at service addresses; nil where rules redirect.
	addresses      redirect.AtAddresses
	balance        *balance.Balance
	origins        *balance.Origins
	ports          *ports
	maxBatchWeight int
	closeOwn       func() error // closes the source of ownAddresses

	counters counters
	notices  *notices

	closed bool
	// ready: a Reset has succeeded, and the kernel's state was not lost since.
	ready bool
	node  lb.Node

	mu       sync.RWMutex // protects rows and services, and their doors and sets, which other goroutines read
	rows     map[lb.Key]*row
	services map[serviceName]*service

	// at are the listeners at service addresses, *door by relay.Listening, and nodePorts the
	// addresses of NodePorts; empty where rules redirect.
	at        sync.Map
	nodePorts []netip.Addr
	// nodeHas are the addresses that the node has without us; empty where rules redirect.
	nodeHas map[netip.Addr]bool
}

// relayer is the plane's view of relay.Relay.
type relayer interface {
	Listen(relay.Listening, relay.Balancer, *relay.Group) (listener, error)
	Stats() relay.Stats
	StopAccepting()
	Drain(context.Context) (left int)
	Close()
}

// listener is the plane's view of relay.Listener.
type listener interface {
	Addr() netip.AddrPort
	SetBalancer(relay.Balancer)
	Close()
}

// sockets are relay.Relay as a relayer.
type sockets struct{ *relay.Relay }

func (s sockets) Listen(at relay.Listening, b relay.Balancer, group *relay.Group) (listener, error) {
	return s.Relay.Listen(at, b, group)
}

// New returns a plane whose sockets are in the network namespace of the calling thread. It changes
// nothing before the first Reset.
func New(cfg Config) (*Plane, error) {
	if cfg.Descriptors == nil {
		cfg.Descriptors = relay.ProcessGroups()
	}
	var p *Plane
	cfg.Relay.Descriptors = cfg.Descriptors.Budget()
	if _, is := cfg.Redirector.(redirect.AtAddresses); !is {
		cfg.Relay.Direct = func(proto lb.Proto, port uint16) bool {
			return p.Answers(lb.Key{Port: port, Proto: proto}, netip.AddrPortFrom(netip.Addr{}, port))
		}
	}
	r, err := relay.New(cfg.Relay)
	if err != nil {
		return nil, fmt.Errorf("userspace: %w", err)
	}
	own, closeOwn, err := openOwn()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("userspace: %w", err)
	}
	p, err = newPlane(cfg, sockets{r}, own)
	if err != nil {
		r.Close()
		closeOwn()
		return nil, err
	}
	p.closeOwn = closeOwn
	return p, nil
}

// newPlane assembles a plane.
func newPlane(cfg Config, r relayer, own func(netip.Addr) (bool, error)) (*Plane, error) {
	if cfg.Family != lb.IPv4 && cfg.Family != lb.IPv6 {
		return nil, fmt.Errorf("userspace: family %s: want IPv4 or IPv6", cfg.Family)
	}
	p := &Plane{
		cfg: cfg, relay: r, redirect: cfg.Redirector, origins: balance.NewOrigins(own),
		ports:          newPorts(cfg.FirstPort, cfg.LastPort),
		maxBatchWeight: maxBatchWeight, rows: map[lb.Key]*row{}, services: map[serviceName]*service{},
		closeOwn: func() error { return nil }, notices: newNotices(cfg),
	}
	p.addresses, _ = cfg.Redirector.(redirect.AtAddresses)
	if cfg.CountServices {
		p.counters.of = map[*counter]struct{}{}
	}
	p.balance = balance.New(balance.Config{Loops: p.avoids()})
	return p, nil
}

// avoids returns a function that reports whether a backend gets no connections (TN-52); nil if all
// backends get connections.
func (p *Plane) avoids() func(netip.AddrPort) bool {
	switch {
	case p.cfg.NoNodeEndpoints: // listeners' addresses are the node's, too
		return func(a netip.AddrPort) bool { return p.origins.Host(a.Addr()) }
	case p.addresses != nil:
		return p.listensAt
	}
	return nil
}

// listensAt reports whether an address is one of the proxy's listeners, to which it must not
// connect itself.
func (p *Plane) listensAt(a netip.AddrPort) bool {
	return slices.ContainsFunc([]lb.Proto{lb.TCP, lb.UDP, lb.SCTP},
		func(proto lb.Proto) bool { return p.doorAtAddress(proto, a) != nil })
}

// doorAtAddress returns the listener at a service address; nil for none.
func (p *Plane) doorAtAddress(proto lb.Proto, a netip.AddrPort) *door {
	d, _ := p.at.Load(relay.Listening{Proto: proto, Addr: a})
	is, _ := d.(*door)
	return is
}

// MaxBatchWeight returns the maximum weight of an Apply.
func (p *Plane) MaxBatchWeight() int { return p.maxBatchWeight }

// Drift has a value when another program may have changed the rules or addresses that redirect.
func (p *Plane) Drift() <-chan struct{} { return p.redirect.Drift() }

// ChangedBy is part of plane.Witness.
func (p *Plane) ChangedBy() string { return plane.ChangedBy(p.redirect) }

// Probe makes the redirector write without a change.
func (p *Plane) Probe(ctx context.Context) error {
	if err := p.usable(ctx); err != nil {
		return fmt.Errorf("userspace: probe: %w", err)
	}
	return p.lost("probe", p.redirect.Probe(ctx))
}

// usable returns the error of all verbs except Reset.
func (p *Plane) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !p.ready {
		return plane.ErrNotSetUp
	}
	return nil
}

// lost wraps an error of the redirector, and records whether a Reset is needed.
func (p *Plane) lost(doing string, err error) error {
	if err == nil {
		return nil
	}
	p.ready = p.ready && !errors.Is(err, plane.ErrStateLost)
	return fmt.Errorf("userspace: %s: redirect by %s, %s: %w", doing, p.redirect.Name(), p.cfg.Family, err)
}

// StopAccepting closes the listeners, so that another process may listen on the ports. After it,
// only Drain, Close and Measure may be called.
func (p *Plane) StopAccepting() { p.relay.StopAccepting() }

// Drain closes the listeners, and returns when the open connections or ctx have ended. It returns
// the number of connections that it ended. After it, only Close and Measure may be called.
func (p *Plane) Drain(ctx context.Context) (left int) { return p.relay.Drain(ctx) }

// Close ends all connections, and frees the plane's resources. The rules stay in force for the next
// process. A second Close does nothing.
func (p *Plane) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.relay.Close()
	return errors.Join(p.redirect.Close(), p.closeOwn())
}

// Answers reports whether the proxy listens for a frontend at a port. The address does not matter:
// listeners are bound either to every address, or to the frontend's.
func (p *Plane) Answers(k lb.Key, from netip.AddrPort) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r := p.rows[k]
	return r != nil && slices.ContainsFunc(r.doors, func(d *door) bool { return d.port().number == from.Port() })
}
