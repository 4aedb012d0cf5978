//go:build linux

package nftables

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/planetest"
)

func countingPlane(t testing.TB, f lb.Family) *Plane {
	t.Helper()
	p := planeOf(t, Config{Family: f, CountServices: true})
	if !p.Counts() {
		t.Fatal("this kernel does not count")
	}
	return p
}

// countedOf returns the counters that the plane reports; a frontend reported twice is an error.
func countedOf(t *testing.T, p *Plane) map[lb.Key]uint64 {
	t.Helper()
	got := map[lb.Key]uint64{}
	if err := p.Traffic(t.Context(), func(c mode.Count) {
		if _, twice := got[c.Frontend]; twice || c.Bytes != 0 || c.N != 0 || c.ServicePort != "" {
			t.Errorf("%+v, reported twice: %t", c, twice)
		}
		got[c.Frontend] = c.Connections
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

// Each connection counts once, for its frontend, also with session affinity. Without space for a
// counter it is still served.
func TestCounters(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		for name, c := range map[string]struct {
			sticky time.Duration
			full   bool
		}{"plain": {}, "with affinity": {sticky: time.Hour}, "no room": {full: true}} {
			t.Run(name, func(t *testing.T) {
				const n, room = 300, 16
				inNetns(t)
				p := countingPlane(t, w.Family)
				p.rules.sets[sConnections].Size = room
				tab := w.Table(3, 2)
				_, f := w.ClusterIP(1, 100, 17)
				f[0].Key.Proto, f[0].Set(lb.Cluster).ID.Proto, f[0].Affinity = lb.UDP, lb.UDP, c.sticky
				tab.Replace(lb.Owner{Name: "ns/svc-1"}, f)
				if got := countedOf(t, p); len(got) != 0 {
					t.Errorf("before there is a table: %v", got)
				}
				reset(t, p, tab)
				if c.full {
					fill(t, p, room)
				}
				served := 0
				flows(t, f[0].Key, n, func(i int) net.IP { return client(w.Family, i/2) },
					func(netip.Addr, netip.Addr) { served++ })
				if served != n {
					t.Errorf("%d of %d flows were served", served, n)
				}
				got := countedOf(t, p)
				switch {
				case c.full && (len(got) != room || got[f[0].Key] != 0):
					t.Errorf("a full set has %d counters, and %d for the row", len(got), got[f[0].Key])
				case !c.full && (len(got) != 1 || got[f[0].Key] != n):
					t.Errorf("%v, want %d of %s alone", got, n, f[0].Key)
				}
				// Elements that packets add are no drift.
				if res, err := p.Audit(t.Context(), true); err != nil || res != 0 {
					t.Errorf("an audit repaired %d: %v", res, err)
				}
			})
		}
	})
}

// fill uses all the room for counters.
func fill(t *testing.T, p *Plane, room int) {
	t.Helper()
	w, all := planetest.World{Family: p.ip.Family}, ""
	for i := range room {
		all += w.Addr(11, i).String() + " . tcp . 80 counter, "
	}
	runNFT(t, fmt.Sprintf("add element %s %s connections { %s }", p.ip.Name(), TableName, all))
}

// A connection to a NodePort counts for the NodePort, and one to a cluster IP for the cluster IP,
// whatever its source. Counts continue over restarts. Turning counting off and on loses no
// connection and no client's backend.
func TestCountersOfALab(t *testing.T) {
	l := netlab.ForTest(t, netlab.Options{})
	tab, clusterIP, nodePort := planetest.Shop(lb.IPv4)
	l.Serve(netlab.TCP, 8080, "pod1", "pod4")
	want := map[lb.Key]uint64{}
	dial := func(from string, to netip.AddrPort, key lb.Key) {
		t.Helper()
		if _, err := l.Dial(from, netlab.TCP, to, netlab.DialOptions{}); err != nil {
			t.Fatalf("%s to %s: %v", from, to, err)
		}
		want[key]++
	}
	vip, port := lb.Key{Addr: clusterIP.Addr(), Port: clusterIP.Port(), Proto: lb.TCP},
		lb.Key{Port: nodePort.Port(), Proto: lb.TCP}
	check := func(p *Plane, about string) {
		t.Helper()
		for range 5 {
			dial("pod2", clusterIP, vip)
			dial("client", nodePort, port)
			dial("node1", clusterIP, vip)
		}
		dial("pod1", clusterIP, vip) // sometimes its own backend
		if got := countedOf(t, p); len(got) != 2 || got[vip] != want[vip] || got[port] != want[port] {
			t.Errorf("%s: %v, want %v", about, got, want)
		}
	}
	l.On("node1", func() {
		p := countingPlane(t, lb.IPv4)
		reset(t, p, tab)
		check(p, "at first")

		again := countingPlane(t, lb.IPv4)
		reset(t, again, tab)
		if s := again.Stats(); s.Messages != 0 {
			t.Errorf("a restart sends %d messages", s.Messages)
		}
		check(again, "after a restart")

		off := newPlane(t, lb.IPv4)
		reset(t, off, tab)
		if off.Counts() {
			t.Error("it counts unasked")
		}
		before := countedOf(t, again)
		sum := want[vip]
		dial("pod2", clusterIP, vip)
		want[vip] = sum
		if got := countedOf(t, again); got[vip] != before[vip] {
			t.Errorf("turned off it counts: %v, before %v", got, before)
		}
		if err := off.Traffic(t.Context(),
			func(c mode.Count) { t.Errorf("turned off it reports %s", c.Frontend) }); err != nil {
			t.Error(err)
		}

		on := countingPlane(t, lb.IPv4)
		reset(t, on, tab)
		check(on, "turned on again")
	})
}
