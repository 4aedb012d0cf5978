package userspace

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/userspace/relay"
)

// Who may write Services in one namespace takes eight ninths of the listeners at most: Services of others that come later are served, what
// is over is named and served when there is room, and nothing that is given up is forgotten.
func TestQuotaOfANamespace(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("own addresses ", own), func(t *testing.T) {
			m := newMachine()
			m.own = own
			q := NewQuota(relay.NewBudget(100), "a test")
			p := begin(t, m, Config{Descriptors: q}, new(lb.Table))
			var all []lb.Change
			for i := range 200 {
				f := front(fmt.Sprintf("10.96.1.%d:80/tcp", i), fmt.Sprintf("evil/s%d:p", i), 0, 1)
				all = append(all, lb.Change{Key: f.Key, New: f})
			}
			_, err := p.Apply(t.Context(), all)
			if !errors.Is(err, ErrQuota) || !strings.Contains(err.Error(), "namespace evil") || !strings.Contains(err.Error(), "a test") {
				t.Errorf("200 Services of one namespace with 100 listeners: %.200v", err)
			}
			if n := len(m.socks); n < 88 || n > 90 {
				t.Errorf("the namespace has %d listeners of 100", n)
			}
			good := front("10.96.2.1:80/tcp", "good/web:p", 0, 1)
			if _, err := p.Apply(t.Context(), []lb.Change{{Key: good.Key, New: good}}); err != nil {
				t.Errorf("a Service of another namespace: %v", err)
			}
			for i := range all {
				all[i].New = nil
			}
			if _, err := p.Apply(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			if n := q.budget.Used(); n != 1 || len(q.namespaces) != 1 {
				t.Errorf("%d listeners are in use by %d namespaces, want 1", n, len(q.namespaces))
			}
		})
	}
}

// Neither does it take all ports of a protocol. Of a few it may have all, if nobody else wants one.
func TestQuotaOfPorts(t *testing.T) {
	take := func(p *ports, service string) error {
		return p.take(service, lb.TCP, 0, func(n uint16) (uint16, error) { return n, nil }, func() {})
	}
	p := newPorts(1000, 1099)
	n := 0
	for ; take(p, fmt.Sprintf("evil/s%d:p", n)) == nil; n++ {
	}
	if err := take(p, "evil/more:p"); n < 88 || n > 91 || !errors.Is(err, ErrQuota) || !strings.Contains(err.Error(), "--proxy-port-range") {
		t.Errorf("a namespace has %d of 100 ports: %v", n, err)
	}
	if err := take(p, "good/web:p"); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	p = newPorts(1000, 1002)
	for i := range 3 {
		if err := take(p, fmt.Sprintf("ns/s%d:p", i)); err != nil {
			t.Errorf("port %d of 3: %v", i+1, err)
		}
	}
	if err := take(p, "ns/more:p"); !errors.Is(err, ErrNoPort) {
		t.Errorf("a fourth of 3 ports: %v", err)
	}
}
