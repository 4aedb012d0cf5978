//go:build linux

package iptables

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// With the nft back end the kernel walks the whole table at each restore. During a load that is
// work in proportion to the endpoints, not to their square. Afterwards a piece is a small part of
// the table, so that a change waits little longer for another's piece than for the kernel (TN-34).
func TestPaceFollowsTheTable(t *testing.T) {
	for _, c := range []struct{ services, most int }{{100, 1000}, {500, 1000}, {2000, 1000}, {8000, 80_000 / 64}} {
		const each, line = 10, "-j DNAT"
		endpoints, largest, walked := 0, 0, 0
		hole := &blackHole{fail: func(stdin []byte, _ []string) error {
			if n := bytes.Count(stdin, []byte(line)); n > 0 {
				endpoints += n
				largest, walked = max(largest, n), walked+endpoints
			}
			return nil
		}}
		p := newPlane(t, Config{Family: lb.IPv4, Runner: hole})
		w := planetest.World{Family: lb.IPv4}
		table := w.Table(c.services, each)
		reset(t, p, table)
		if endpoints != c.services*each {
			t.Fatalf("%d endpoints of %d services are written, want %d of each", endpoints, c.services, each)
		}
		if walked > 20*endpoints || largest > nftPace.first+2*each {
			t.Errorf("%d endpoints: the kernel walks %d times as many, and the largest restore has %d", endpoints,
				walked/endpoints, largest)
		}
		if got := p.MaxBatchWeight(); got != c.most {
			t.Errorf("%d endpoints: an Apply writes %d after the load, want %d", endpoints, got, c.most)
		}
		// A frontend heavier than the rest of a piece is no second restore.
		var changes []lb.Change
		for i, n := range []int{1, 500, 499, 300} {
			some, _ := table.Replace(w.Full(c.services+1+i, 1, n, 0, 0))
			changes = append(changes, some...)
		}
		before := len(hole.runs)
		apply(t, p, changes)
		if n := len(hole.runs) - before; n != 1 {
			t.Errorf("%d endpoints: a piece was written in %d restores", endpoints, n)
		}
	}
}

// BenchmarkFloor compares a changed endpoint and a full piece of another's endpoints with a restore
// of one rule in a chain to which nothing jumps, beside 10 endpoints of each Service: no program
// that uses iptables-nft can be faster.
func BenchmarkFloor(b *testing.B) {
	for _, n := range []int{500, 5000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			needs(b, xtables.NFT)
			inNetns(b)
			w, p := planetest.World{Family: lb.IPv4}, newPlane(b, Config{Family: lb.IPv4, Backend: xtables.NFT})
			table := w.Table(n, 10)
			reset(b, p, table)
			took := func(f func()) (median time.Duration) {
				var all []time.Duration
				for range 9 {
					began := time.Now()
					f()
					all = append(all, time.Since(began))
				}
				return slices.Sorted(slices.Values(all))[len(all)/2]
			}
			for b.Loop() {
				floor := took(func() {
					run(b, "*nat\n:KUBE-PROXY-CANARY - [0:0]\n-A KUBE-PROXY-CANARY -j RETURN\nCOMMIT\n",
						"iptables-nft-restore", "--noflush")
				})
				next := 0
				change := took(func() {
					next++
					changes, _ := table.Replace(w.ClusterIP(7, 100+next, 10))
					apply(b, p, changes)
				})
				piece := took(func() {
					next++
					var changes []lb.Change
					for i := range (p.MaxBatchWeight() + 499) / 500 {
						some, _ := table.Replace(w.Full(n+1+i, 600*next, 500, 0, 0))
						changes = append(changes, some...)
					}
					apply(b, p, changes)
				})
				b.ReportMetric(float64(floor.Microseconds())/1000, "floor-ms")
				b.ReportMetric(float64(change)/float64(floor), "change/floor")
				b.ReportMetric(float64(piece)/float64(floor), "piece/floor")
			}
		})
	}
}
