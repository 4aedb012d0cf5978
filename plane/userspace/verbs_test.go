//go:build linux

package userspace

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
)

// The verbs, over a redirector and sockets in memory, of either kind. No rule ever redirects to a
// port without a listener.
func TestVerbsInMemory(t *testing.T) {
	kerneltest.Later(t)
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own=%t", own), func(t *testing.T) {
			planetest.Verbs(t, func(t testing.TB) planetest.Kernel { return newMemory(t, own).kernel() })
		})
	}
}

// Whatever the redirector refuses or loses, the plane ends in the state of a fresh one, and holds
// no unneeded listener.
func TestWalk(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own=%t", own), func(t *testing.T) {
			planetest.Walks(t, 20, 80, func(t testing.TB) planetest.Kernel {
				m := newMemory(t, own)
				k := m.kernel()
				k.Faults = planetest.Faults{
					Begin: func(rnd *rand.Rand) {
						for _, m := range m.machines {
							m.refuse = func(redirect.Entry) bool { return rnd.IntN(8) == 0 }
							if rnd.IntN(6) == 0 {
								m.files = len(m.socks) + rnd.IntN(2)
							}
						}
					},
					End: func() {
						for _, m := range m.machines {
							m.refuse, m.files = nil, 0
						}
					},
					Check: func(t testing.TB, p planetest.Plane, want *lb.Table) { m.noOthers(t, want) },
				}
				return k
			})
		})
	}
}

// memory is a machine for each family, and its present process.
type memory struct {
	testing.TB
	own      bool
	machines map[lb.Family]*machine
	last     map[lb.Family]*Plane
}

func newMemory(t testing.TB, own bool) *memory {
	return &memory{t, own, map[lb.Family]*machine{}, map[lb.Family]*Plane{}}
}

// start makes a plane, after the previous process has ended.
func (k *memory) start(f lb.Family) (planetest.Plane, error) {
	m := k.machines[f]
	if m == nil {
		m = newMachine()
		m.own = k.own
		m.addrs = []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00:18::2")}
		k.machines[f] = m
		k.Cleanup(func() {
			if len(m.holes) > 0 {
				k.Errorf("redirects without listener: %v", m.holes)
			}
			if len(m.socks) > 0 {
				k.Errorf("%d listeners are open after all planes are closed", len(m.socks))
			}
		})
	} else if last := k.last[f]; last != nil {
		for l := range last.relay.(*fakeRelay).mine {
			l.Close()
		}
	}
	p, err := m.start(Config{Family: f, ExternalIPsBounded: func() bool { return true }})
	k.last[f] = p
	return p, err
}

// noOthers checks that the plane has as many listeners as a fresh one.
func (k *memory) noOthers(t testing.TB, want *lb.Table) {
	t.Helper()
	other := newMemory(t, k.own)
	p, err := other.start(want.Family)
	if err == nil {
		_, err = planetest.ResetAll(t.Context(), p, want)
	}
	if err != nil {
		t.Fatal(err)
	}
	if has, fresh := len(k.machines[want.Family].socks), len(other.machines[want.Family].socks); has != fresh {
		t.Errorf("%s: %d listeners, a fresh plane has %d", want.Family, has, fresh)
	}
	if err := p.(*Plane).Close(); err != nil {
		t.Error(err)
	}
}

func (k *memory) kernel() planetest.Kernel {
	return planetest.Kernel{
		New: k.start,
		Slow: func(f lb.Family) (planetest.Plane, error) {
			p, err := k.start(f)
			if err == nil {
				p.(*Plane).maxBatchWeight = 10
			}
			return p, err
		},
		Damage: func(f lb.Family, rnd *rand.Rand) error {
			m := k.machines[f]
			keys := slices.SortedFunc(maps.Keys(m.leads), lb.Key.Compare)
			if len(keys) == 0 {
				return errors.New("there is nothing to damage")
			}
			key := keys[rnd.IntN(len(keys))]
			m.leads[key] = redirect.Entry{Key: key}
			select {
			case k.last[f].redirect.(interface{ fake() *fakeRedirector }).fake().drift <- struct{}{}:
			default: // reported already
			}
			return nil
		},
		Wipe: func(f lb.Family) error {
			clear(k.machines[f].leads)
			k.machines[f].lost = true
			return nil
		},
		Balances: true,
		Reported: true,
	}
}
