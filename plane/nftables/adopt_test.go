//go:build linux

package nftables

import (
	"fmt"
	"testing"
	"time"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// Keys change owners while no proxy runs. Each Service still keeps its set id, and with it its
// clients (SV-18): the kernel's entry of a key that moved to another Service does not show who owns
// the set.
func TestSetIDsWhenKeysChangeHands(t *testing.T) {
	const pairs = 16 // half of them would come out wrong by chance
	type form struct {
		keys     []int // 0 to 3 of the pair are cluster IPs, 4 and above are external
		backends [2]int
	}
	for name, c := range map[string]struct{ was, is [2]form }{
		"a swap of keys and of pods": {
			was: [2]form{{[]int{0, 4}, [2]int{0, 3}}, {[]int{1, 5}, [2]int{10, 13}}},
			is:  [2]form{{[]int{0, 5}, [2]int{10, 13}}, {[]int{1, 4}, [2]int{0, 3}}}},
		"a swap": {
			was: [2]form{{[]int{0, 4}, [2]int{0, 3}}, {[]int{1, 5}, [2]int{10, 13}}},
			is:  [2]form{{[]int{0, 5}, [2]int{0, 3}}, {[]int{1, 4}, [2]int{10, 13}}}},
		"a swap of many keys against one that stays": {
			was: [2]form{{[]int{4, 5, 6, 7}, [2]int{0, 3}}, {[]int{8, 9, 10, 11}, [2]int{10, 13}}},
			is:  [2]form{{[]int{8, 9, 10, 7}, [2]int{0, 3}}, {[]int{4, 5, 6, 11}, [2]int{10, 13}}}},
		"the owner of a cluster IP comes for it": {
			was: [2]form{{[]int{0, 1}, [2]int{0, 3}}, {nil, [2]int{}}},
			is:  [2]form{{[]int{0}, [2]int{0, 3}}, {[]int{1}, [2]int{10, 13}}}},
	} {
		t.Run(name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, w planetest.World) {
				table := func(forms [2]form) *lb.Table {
					tab := &lb.Table{Node: w.Node()}
					for i := range 2 * pairs {
						f := forms[i%2]
						name := fmt.Sprintf("ns/svc-%d:http", i)
						set := w.Set(name, lb.Cluster, i/2*100+f.backends[0], f.backends[1]-f.backends[0])
						var fronts []*lb.Frontend
						for _, k := range f.keys {
							kind := lb.ExternalIP
							if k == i%2 {
								kind = lb.ClusterIP
							}
							fronts = append(fronts, &lb.Frontend{Key: lb.Key{Addr: w.Addr(10, i/2*100+k), Port: 80,
								Proto: lb.TCP}, Service: name, Kind: kind, Affinity: time.Hour,
								Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}})
						}
						tab.Replace(lb.Owner{Name: name}, fronts)
					}
					return tab
				}
				p := started(t, w, table(c.was))
				before := p.st.sets
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				q := newPlane(t, w.Family)
				reset(t, q, table(c.is))
				for id, s := range before {
					if now := q.st.sets[id]; now == nil || now.id != s.id {
						t.Errorf("%s had id %d and has %v", id, s.id, now.number())
					}
				}
				dump(t, q)
			})
		})
	}
}
