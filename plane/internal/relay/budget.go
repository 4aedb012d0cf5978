package relay

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"

	"kube-proxy/lb"
)

// Budget limits a scarce resource, and keeps one user from taking all of it. Of descriptors, each
// listener has a share for its connections, and each namespace one for its listeners and all their
// connections. The relays of a process share one Budget: each family alone may use all of it.
//
// A user may take more while it has less than some multiple of what is free. With a multiple of
// four, one user alone gets 4/5 of all, each of ten gets a tenth, and a late one still finds some.
// No number of shares is configured, and returned units count at once.
type Budget struct {
	max  int64
	used atomic.Int64
}

// How many times the free amount one user may have: a listener, or a zero Share; and a group, so
// that a greedy listener leaves some for the others in its group.
const (
	greed      = 4
	groupGreed = 8
)

// Share is one user's part of a budget. The zero Share belongs to no group.
type Share struct {
	used  atomic.Int64
	group *Share
	greed int64 // 0 is greed
}

// Used returns its size.
func (s *Share) Used() int64 { return s.used.Load() }

// add adds n to the share and its group, and reports whether the sum is allowed with so much free.
func (s *Share) add(n, free int64) (may bool) {
	may = true
	for ; s != nil; s = s.group {
		if had := s.used.Add(n) - n; had > cmp.Or(s.greed, greed)*free {
			may = false
		}
	}
	return may
}

// NewBudget limits to max. 0 means five eighths of the process's descriptors: sockets of UDP take a
// quarter, and the rest of the process needs some.
func NewBudget(max int) *Budget {
	if max <= 0 {
		max = OpenFiles() * 5 / 8
	}
	return &Budget{max: int64(max)}
}

// Take takes n for one user, and reports whether the user's share allows it.
func (b *Budget) Take(s *Share, n int64) bool {
	used := b.used.Add(n)
	if may := s.add(n, b.max-used); !may || used > b.max {
		b.Give(s, n)
		return false
	}
	return true
}

// force takes n for a user regardless of the limit.
func (b *Budget) force(s *Share, n int64) {
	b.used.Add(n)
	s.add(n, 0)
}

// Give returns n.
func (b *Budget) Give(s *Share, n int64) {
	b.used.Add(-n)
	s.add(-n, 0)
}

// Used returns the sum of all shares.
func (b *Budget) Used() int64 { return b.used.Load() }

// Max returns the size of the budget.
func (b *Budget) Max() int64 { return b.max }

// ErrQuota is wrapped by errors of a namespace that has used up its share.
var ErrQuota = errors.New("no listener for another Service of the namespace")

// Group is the share of a namespace's listeners together.
type Group struct {
	descriptors Share // of listeners and connections
	sessions    Share // of UDP
	held        Share // bytes of messages that associations of SCTP hold
	listeners   int
	table       uint32 // index of the UDP table for its sessions
}

// NewGroup returns an empty group.
func NewGroup() *Group {
	return &Group{descriptors: Share{greed: groupGreed}, sessions: Share{greed: groupGreed},
		held: Share{greed: groupGreed}, table: rand.Uint32()}
}

// Groups divides a Budget among namespaces: Services of one do not use up the descriptors or ports
// of others. The families of a process share one. It is safe for concurrent use.
type Groups struct {
	budget *Budget
	from   string

	mu sync.Mutex
	of map[string]*Group // by namespace
}

// NewGroups divides b. from explains its size to an operator.
func NewGroups(b *Budget, from string) *Groups {
	return &Groups{budget: b, from: from, of: map[string]*Group{}}
}

// ProcessGroups divides the process's limit of open files for listeners and their connections.
func ProcessGroups() *Groups {
	return NewGroups(NewBudget(0), "descriptors of listeners and connections; raise the limit of open files: ulimit "+
		"-n, LimitNOFILE")
}

// Budget returns the budget that is divided.
func (g *Groups) Budget() *Budget { return g.budget }

// Len returns the number of namespaces with a share.
func (g *Groups) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.of)
}

// Take takes one for a listener of a Service, "ns/name:port", and returns the group of its
// namespace.
func (g *Groups) Take(service string) (*Group, error) {
	namespace := lb.NamespaceOf(service)
	g.mu.Lock()
	defer g.mu.Unlock()
	has := g.of[namespace]
	if has == nil {
		has = NewGroup()
	}
	if !g.budget.Take(&has.descriptors, 1) {
		return nil, fmt.Errorf("%w: Services of namespace %s have %d, and all together %d of %d (%s)", ErrQuota,
			namespace, has.descriptors.Used(), g.budget.Used(), g.budget.Max(), g.from)
	}
	has.listeners++
	g.of[namespace] = has
	return has, nil
}

// Give returns what Take took.
func (g *Groups) Give(service string) {
	namespace := lb.NamespaceOf(service)
	g.mu.Lock()
	defer g.mu.Unlock()
	has := g.of[namespace]
	g.budget.Give(&has.descriptors, 1)
	has.listeners--
	if has.listeners == 0 {
		delete(g.of, namespace)
	}
}

// errPorts says why a client goes to another backend although the node has ports left.
var errPorts = errors.New("the client has its share of the source ports towards the backend")

// sourcePorts divides the source ports towards each backend among clients: one client with many
// idle connections leaves some for the others. It only keeps clients that have connections.
type sourcePorts struct {
	most int64 // towards one backend

	mu      sync.Mutex
	to      map[portsKey]*Budget
	clients map[clientPortsKey]*clientPorts
}

// portsKey identifies a set of source ports: that of one backend, or of all backends for SCTP,
// whose sockets are bound before they connect.
type portsKey struct {
	proto   lb.Proto
	backend netip.AddrPort
}

// clientPortsKey identifies one client's part of them.
type clientPortsKey struct {
	portsKey
	client netip.Addr
}

// clientPorts is one client's part of a set.
type clientPorts struct {
	Share
	key clientPortsKey
}

// take takes a port for a connection of a client; nil if the client has its share.
func (p *sourcePorts) take(proto lb.Proto, backend netip.AddrPort, client netip.Addr) *clientPorts {
	key := clientPortsKey{portsKey{proto, backend}, client}
	if proto == lb.SCTP {
		key.backend = netip.AddrPort{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to[key.portsKey] == nil {
		p.to[key.portsKey] = &Budget{max: p.most}
	}
	c := p.clients[key]
	if c == nil {
		c = &clientPorts{key: key}
		p.clients[key] = c
	}
	if !p.to[key.portsKey].Take(&c.Share, 1) {
		p.forget(c)
		return nil
	}
	return c
}

// give returns a port. It ignores nil.
func (p *sourcePorts) give(c *clientPorts) {
	if c == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to[c.key.portsKey].Give(&c.Share, 1)
	p.forget(c)
}

// forget deletes unused entries.
func (p *sourcePorts) forget(c *clientPorts) {
	if c.Used() == 0 {
		delete(p.clients, c.key)
	}
	if p.to[c.key.portsKey].Used() == 0 {
		delete(p.to, c.key.portsKey)
	}
}
