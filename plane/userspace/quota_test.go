package userspace

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/lb"
	"kube-proxy/plane/internal/relay"
)

// The Services of one namespace take at most eight ninths of the listeners: later Services of
// others are served, the excess ones are reported and served when there is room, and all released
// listeners are counted.
func TestQuotaOfANamespace(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprint("own addresses ", own), func(t *testing.T) {
			m := newMachine()
			m.own = own
			q := relay.NewGroups(relay.NewBudget(100), "a test")
			p := begin(t, m, Config{Descriptors: q}, new(lb.Table))
			var all []lb.Change
			for i := range 200 {
				f := front(fmt.Sprintf("10.96.1.%d:80/tcp", i), fmt.Sprintf("evil/s%d:p", i), 0, 1)
				all = append(all, lb.Change{Key: f.Key, New: f})
			}
			_, err := p.Apply(t.Context(), all)
			if !errors.Is(err, relay.ErrQuota) || !strings.Contains(err.Error(), "namespace evil") ||
				!strings.Contains(err.Error(), "a test") {
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
			if n := q.Budget().Used(); n != 1 || q.Len() != 1 {
				t.Errorf("%d listeners are in use by %d namespaces, want 1", n, q.Len())
			}
		})
	}
}

// Nor does it take all ports of a protocol. It may have all of a few ports while no other namespace
// needs one.
func TestQuotaOfPorts(t *testing.T) {
	take := func(p *ports, service string) error {
		return p.take(service, lb.TCP, 0, func(n uint16) (uint16, error) { return n, nil }, func() {})
	}
	p := newPorts(1000, 1099)
	n := 0
	for ; take(p, fmt.Sprintf("evil/s%d:p", n)) == nil; n++ {
	}
	if err := take(p, "evil/more:p"); n < 88 || n > 91 || !errors.Is(err, relay.ErrQuota) ||
		!strings.Contains(err.Error(), "--proxy-port-range") {
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

// Released ports that rest count for the namespace that had them: a Service that is created and
// deleted repeatedly leaves ports for others, and gets its own again when they have rested (TN-55).
func TestQuotaOfRestingPortsTN55(t *testing.T) {
	for name, p := range map[string]*ports{"range": newPorts(1000, 1099), "any": newPorts(0, 0)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				next := uint16(0)
				take := func(service string) (n uint16, err error) {
					return n, p.take(service, lb.UDP, 0, func(want uint16) (uint16, error) {
						n = want
						if n == 0 {
							next++
							n = next
						}
						return n, nil
					}, func() {})
				}
				churn := func() (n int, err error) {
					for ; n < 1<<16 && err == nil; n++ {
						var at uint16
						at, err = take("evil/flaps:p")
						if err == nil {
							p.give("evil/flaps:p", lb.UDP, at)
						}
					}
					return n - 1, err
				}
				n, err := churn()
				if most := int(p.quota(lb.UDP).Budget().Max()); n < most*8/10 || n > most*9/10 ||
					!errors.Is(err, relay.ErrQuota) {
					t.Errorf("a Service comes and goes %d times with %d ports: %v", n, most, err)
				}
				if _, err := take("good/web:p"); err != nil {
					t.Errorf("another namespace: %v", err)
				}
				time.Sleep(portRest)
				if again, _ := churn(); again < n-1 {
					t.Errorf("it comes and goes %d times after the ports have rested", again)
				}
			})
		})
	}
}
