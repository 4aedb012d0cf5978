//go:build linux

package userspace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/plane/userspace/capture"
	"kube-proxy/test/planetest"
)

// The verbs, over a capture and sockets in memory, of either kind. Nothing leads to where nobody listens, at any time.
func TestVerbsInMemory(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own=%t", own), func(t *testing.T) {
			planetest.Verbs(t, func(t testing.TB) planetest.Kernel {
				machines := map[lb.Family]*machine{}
				var last *Plane
				start := func(f lb.Family) (planetest.Plane, error) {
					m := machines[f]
					if m == nil {
						m = newMachine()
						m.own = own
						m.addrs = []netip.Addr{netip.MustParseAddr("172.18.0.2"), netip.MustParseAddr("fd00:18::2")}
						machines[f] = m
						t.Cleanup(func() {
							if len(m.holes) > 0 {
								t.Errorf("nobody listened: %v", m.holes)
							}
							if len(m.socks) > 0 {
								t.Errorf("%d listeners are open after all planes are closed", len(m.socks))
							}
						})
					} else if last != nil {
						for l := range last.relay.(*fakeRelay).mine { // its process has ended
							l.Close()
						}
					}
					var err error
					last, err = m.start(Config{Family: f, ExternalIPsBounded: func() bool { return true }})
					return last, err
				}
				return planetest.Kernel{
					New: start,
					Slow: func(f lb.Family) (planetest.Plane, error) {
						p, err := start(f)
						if err == nil {
							p.(*Plane).pace = 10
						}
						return p, err
					},
					Damage: func(f lb.Family, rnd *rand.Rand) error {
						m := machines[f]
						keys := slices.SortedFunc(func(yield func(lb.Key) bool) {
							for k := range m.leads {
								if !yield(k) {
									return
								}
							}
						}, lb.Key.Compare)
						if len(keys) == 0 {
							return errors.New("there is nothing to damage")
						}
						k := keys[rnd.IntN(len(keys))]
						m.leads[k] = capture.Lead{Key: k}
						last.capture.(*fakeCapture).drift <- struct{}{}
						return nil
					},
					Wipe: func(f lb.Family) error {
						clear(machines[f].leads)
						machines[f].lost = true
						return nil
					},
					Balances: true,
					Told:     true,
				}
			})
		})
	}
}
