package userspace

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"kube-proxy/plane/internal/relay"
)

// ErrQuota is wrapped by errors that say that the Services of a namespace have as much as they may have beside those of others.
var ErrQuota = errors.New("no listener for another Service of the namespace")

// Quota bounds how many listeners there are, and how many are those of one namespace: who may write Services in one takes neither the
// descriptors nor the ports of the Services of others, nor those that the process and the node need. It is safe for concurrent use.
type Quota struct {
	budget *relay.Budget
	// from says what the bound comes from, and so what to do about it.
	from string

	mu         sync.Mutex
	namespaces map[string]*holding
}

// holding is what a namespace has: listeners, and in its share what else counts as these do.
type holding struct {
	share     *relay.Share
	listeners int
}

// NewQuota bounds listeners to what there is in a budget.
func NewQuota(b *relay.Budget, from string) *Quota {
	return &Quota{budget: b, from: from, namespaces: map[string]*holding{}}
}

// processQuota is that of a process: what its limit of open files leaves for listeners and their connections.
func processQuota() *Quota {
	return NewQuota(relay.NewBudget(0), "descriptors of listeners and connections; raise the limit of open files: ulimit -n, LimitNOFILE")
}

// take takes one for a Service, "ns/name:port", and returns the share of its namespace.
func (q *Quota) take(service string) (*relay.Share, error) {
	name, _, _ := strings.Cut(service, "/")
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.namespaces[name]
	if h == nil {
		h = &holding{share: relay.NewGroup()}
	}
	if !q.budget.Take(h.share, 1) {
		return nil, fmt.Errorf("%w: Services of namespace %s have %d, and all together %d of %d (%s)", ErrQuota, name, h.share.Used(),
			q.budget.Used(), q.budget.Max(), q.from)
	}
	h.listeners++
	q.namespaces[name] = h
	return h.share, nil
}

// give gives back what a Service took.
func (q *Quota) give(service string) {
	name, _, _ := strings.Cut(service, "/")
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.namespaces[name]
	q.budget.Give(h.share, 1)
	if h.listeners--; h.listeners == 0 {
		delete(q.namespaces, name)
	}
}
