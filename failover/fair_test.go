package failover_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// crowd is a Service with many endpoints, ten on each node from node-10 on.
func (w *world) crowd(svc string, net byte, n int) (all []string) {
	var endpoints []string
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, net, byte(i / 250), byte(i % 250)})
		all = append(all, netip.AddrPortFrom(a, 80).String())
		endpoints = append(endpoints, fmt.Sprintf("%s@node-%d", a, 10+i/10))
	}
	w.service(svc, endpoints...)
	return all
}

// blocked has the packets of clients to all these endpoints noticed for a while, each twice a
// second: a policy drops them, or their sender does not want an answer.
func (w *world) blocked(d time.Duration, all map[string][]string) {
	for end := w.now + d; w.now < end; {
		for svc, endpoints := range all {
			for i, at := range endpoints {
				if (int(w.now/(50*time.Millisecond))+i)%10 == 0 {
					w.notice(svc, at)
				}
			}
		}
		w.run(50 * time.Millisecond)
	}
}

// TestHostileSlices: a tenant's slices place many silent endpoints on nodes that live, and his
// clients have all of them noticed, and those of another Service. A node dies: it is found as if he
// were not there (FO-08, FO-10).
func TestHostileSlices(t *testing.T) {
	w := three(t)
	var endpoints, evil []string
	for i := range 400 {
		a := fmt.Sprintf("10.66.%d.%d", i/200, i%200)
		endpoints = append(endpoints, fmt.Sprintf("%s@node-%d", a, 2+i%3))
		evil = append(evil, a+":80")
		w.silent[addr(a+":80")] = true
	}
	w.service("zevil", endpoints...)
	all := map[string][]string{"zevil": evil, "xweb": {b1, c1}}
	w.blocked(15*time.Second, all)
	w.dead["node-2"] = true
	died := w.now
	for len(w.downs) == 0 && w.now < died+time.Minute {
		if (w.now-died)%time.Second == 0 {
			w.notice("xweb", b1)
		}
		w.blocked(50*time.Millisecond, all)
	}
	if took := w.now - died; len(w.downs) == 0 || took > 2*time.Second {
		t.Errorf("node-2 is found after %s, want at most 2 s: %v", took, w.downs)
	}
}

// TestBlockedCrowd: clients that get no answer, of whatever reason, have endpoints probed without
// end, and a node dies. It is found within the share of its namespace: 20 endpoints a second, and
// 200 of all namespaces (FO-10).
func TestBlockedCrowd(t *testing.T) {
	for _, test := range []struct {
		name       string
		namespaces int  // that are noticed
		endpoints  int  // of each
		own        bool // the Service is among them
		silent     bool // no endpoint of the others answers
		within     time.Duration
	}{
		{"one other namespace", 1, 100, false, false, time.Second},
		{"120 other namespaces", 120, 5, false, false, time.Second},
		{"120 other namespaces, with 12 endpoints each", 120, 12, false, false, 4 * time.Second},
		{"120 other namespaces, whose endpoints are silent", 120, 12, false, true, 10 * time.Second},
		{"the Service itself", 1, 20, true, false, 3 * time.Second},
		{"the Service itself, with 100 endpoints", 1, 100, true, false, 7 * time.Second},
		{"the Service itself, with 400 endpoints", 1, 400, true, false, 22 * time.Second},
		{"120 namespaces with the Service's", 120, 12, true, false, 7 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := three(t)
			all := map[string][]string{}
			for ns := range test.namespaces {
				svc := string([]byte{byte(256 - test.namespaces + ns)}) + "web" // not those of three
				if test.own && ns == 0 {
					svc = "xweb"
				}
				all[svc] = w.crowd(svc, byte(20+ns), test.endpoints)
				for _, at := range all[svc] {
					w.silent[addr(at)] = test.silent
				}
			}
			victim := b1
			if test.own {
				w.service("xother", "10.0.3.1@node-3")
				victim = all["xweb"][0]
			}
			home := w.homes[addr(victim).Addr()]
			w.blocked(15*time.Second, all)
			w.dead[home] = true
			died := w.now
			for len(w.downs) == 0 && w.now < died+time.Minute {
				if (w.now-died)%time.Second == 0 {
					w.notice("xweb", victim)
				}
				w.blocked(50*time.Millisecond, all)
			}
			took := w.now - died
			t.Logf("%s is found after %s, by %d probes", home, took, len(w.probes))
			if len(w.downs) == 0 || took > test.within {
				t.Errorf("%s is found after %s, want at most %s; down: %v", home, took, test.within, w.downs)
			}
			w.limits(200)
		})
	}
}
