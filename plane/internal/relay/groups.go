package relay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"kube-proxy/lb"
)

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
	if has.listeners--; has.listeners == 0 {
		delete(g.of, namespace)
	}
}
