//go:build linux

package nftables

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// A second Reset, and a Reset by a new process, have nothing to do: a restart is invisible.
func TestRestartSendsNothing(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(20, 4)
		tab.Replace(w.Full(100, 500, 5, 2, 0))
		tab.Replace(w.Full(101, 600, 5, 0, time.Hour))
		tab.Replace(w.Full(102, 700, 0, 0, 0))
		p := started(t, w, tab)
		before := dump(t, p)
		sent := p.Stats().Batches
		reset(t, p, tab)
		if n := p.Stats().Batches; n != sent {
			t.Errorf("a second Reset sent %d batches", n-sent)
		}
		q := newPlane(t, w.Family)
		reset(t, q, tab)
		if n := q.Stats().Batches; n != 0 {
			t.Errorf("a new process sent %d batches", n)
		}
		isDump(t, q, before)
	})
}

// A new process changes only differences, and keeps ids, so that clients keep their backends.
func TestRestartSendsTheDifference(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(50, 10)
		p := started(t, w, tab)
		cold := p.Stats()

		tab.Replace(w.ClusterIP(7, 1000, 3))
		tab.Replace(w.ClusterIP(8, 80, 0))
		tab.Replace(w.ClusterIP(60, 2000, 4))
		tab.Replace(lb.Owner{Name: "ns/svc-9"}, nil)
		q := newPlane(t, w.Family)
		gone := reset(t, q, tab).Dropped
		isFresh(t, q, tab)
		if len(gone) != 1 || gone[0].Addr != w.Addr(10, 10) {
			t.Errorf("dropped %v, want the address of svc-9", gone)
		}
		if s := q.Stats(); s.Batches != 1 || s.Bytes > cold.Bytes/2 {
			t.Errorf("sent %+v for three services; the cold start sent %+v for fifty", s, cold)
		}
	})
}

// A health check needs no kernel objects: it sends no batch when it is added, changed or removed.
// If it takes the port of a NodePort, the plane just removes the NodePort.
func TestHealthCheckSendsNothing(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		tab := w.Table(3, 2)
		port := lb.Key{Port: 32100, Proto: lb.TCP}
		check := func(endpoints int) *lb.Frontend {
			return &lb.Frontend{Key: port, Service: "ns/balanced", Kind: lb.HealthCheck,
				Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Accept}}, LocalEndpoints: endpoints}
		}
		balanced := lb.Owner{Name: "ns/balanced"}
		tab.Replace(balanced, []*lb.Frontend{check(0)})
		p := newPlane(t, w.Family)
		reset(t, p, tab)
		before, sent := dump(t, p), p.Stats().Batches
		for _, want := range [][]*lb.Frontend{{check(1)}, {check(2)}, nil, {check(1)}} {
			apply(t, p, planetest.Changes(tab.Replace(balanced, want)))
			if n := p.Stats().Batches; n != sent {
				t.Errorf("%v: %d batches sent", want, n-sent)
			}
		}
		nodePort := check(0)
		nodePort.Kind, nodePort.LocalEndpoints, nodePort.Routes = lb.NodePort, 0,
			[]lb.Route{{From: lb.Anywhere, Do: lb.Reject}}
		apply(t, p, planetest.Changes(tab.Replace(balanced, []*lb.Frontend{nodePort})))
		if got, want := dump(t, p), fresh(t, w.Family, tab); got != want || got == before {
			t.Errorf("with a NodePort instead, got:\n%s\nwant:\n%s", got, want)
		}
		apply(t, p, planetest.Changes(tab.Replace(balanced, []*lb.Frontend{check(1)})))
		// The chains of the NodePort's class stay until the next Reset, but all references to them
		// must be gone.
		if _, ok := p.st.rows[port]; ok {
			t.Error("the NodePort is still there")
		}
		q := newPlane(t, w.Family)
		reset(t, q, tab)
		isDump(t, q, before, "after a restart,")
	})
}

func name(w planetest.World, i int) string { o, _ := w.ClusterIP(i, 0, 0); return o.Name }

// The messages and bytes of a change do not depend on the number of services.
func TestCostOfAChange(t *testing.T) {
	cost := func(n int) (endpoint, service Stats) {
		w := planetest.World{Family: lb.IPv4}
		tab := w.Table(n, 10)
		p := started(t, w, tab)
		before := p.Stats()
		o, f := w.ClusterIP(n/2, n/2*10, 10)
		set := f[0].Set(lb.Cluster)
		all := slices.Collect(set.Backends.All())
		all[8].Addr = netip.AddrPortFrom(all[8].Addr.Addr(), 8081) // of ten, one on another node
		slices.SortFunc(all, lb.Backend.Compare)
		set.Backends = lb.BackendsOf(all...)
		apply(t, p, planetest.Changes(tab.Replace(o, f)))
		endpoint = p.Stats().minus(before)
		before = p.Stats()
		apply(t, p, planetest.Changes(tab.Replace(w.ClusterIP(n, n*10, 10))))
		return endpoint, p.Stats().minus(before)
	}
	var small, large [2]Stats
	done := make(chan struct{})
	go func() { small[0], small[1] = cost(100); close(done) }()
	<-done
	large[0], large[1] = cost(10_000)
	if small != large {
		t.Errorf("with 100 services %+v, with 10,000 %+v", small, large)
	}
	if m := small[0].Messages; m != 2 {
		t.Errorf("one endpoint's change took %d messages, want 2: one element goes, one comes", m)
	}
	if m := small[1].Messages; m != 5 {
		t.Errorf("a new service took %d messages, want 5: class, set id, shape, backends, cluster IP", m)
	}
}

func (s Stats) minus(o Stats) Stats {
	return Stats{s.Batches - o.Batches, s.Failures - o.Failures, s.Messages - o.Messages, s.Bytes - o.Bytes}
}

// Planes ignore the serving state beside the routes (DP-50).
func TestServingAloneSendsNothing(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(3, 2)
	p := started(t, w, tab)
	sent := p.Stats()
	for n := range 3 {
		o, f := w.ClusterIP(1, 2, 2)
		if n < 2 {
			f[0].Serving = w.Set(f[0].Service, lb.Serving, 1, 3+n)
		}
		changes, _ := tab.Replace(o, f)
		if len(changes) != 1 {
			t.Fatalf("%d changes", len(changes))
		}
		apply(t, p, changes)
	}
	reset(t, p, tab)
	if s := p.Stats().minus(sent); s != (Stats{}) {
		t.Errorf("sent %+v", s)
	}
}

// One frontend that the plane cannot hold does not keep the others out of the kernel.
func TestResetWithABadRow(t *testing.T) {
	inNetns(t)
	w := planetest.World{Family: lb.IPv4}
	p := newPlane(t, w.Family)
	tab := w.Table(3, 2)
	want := fresh(t, w.Family, tab)
	p.maxSlots = 2
	o, large := w.ClusterIP(98, 500, 3)
	tab.Replace(o, large)
	res, err := p.Reset(t.Context(), tab)
	if err != nil || len(res.Later) != 1 || res.Later[0] != large[0].Key {
		t.Errorf("%+v, error %v, want the bad row left for later", res, err)
	}
	if _, err := p.Apply(t.Context(), []lb.Change{{Key: res.Later[0], New: tab.Get(res.Later[0])}}); err == nil ||
		!strings.Contains(err.Error(), "ns/svc-98") || !strings.Contains(err.Error(), "3 backends") {
		t.Errorf("error %v does not name the bad row, or not the reason", err)
	}
	isDump(t, p, want)
	if _,
		err := p.Apply(t.Context(),
		[]lb.Change{{Key: lb.Key{Addr: (planetest.World{Family: lb.IPv6}).Addr(10, 1), Port: 1, Proto: lb.TCP},
			New: tab.Sorted()[0]}}); err == nil {
		t.Error("a row under a foreign key was taken")
	}
	isDump(t, p, want, "a refused change left traces")
}

// The nft program, also that of Debian 12, can list our table.
func TestListing(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := w.Table(3, 2)
		tab.Replace(w.Full(10, 500, 5, 2, 0))
		tab.Replace(w.Full(11, 600, 5, 0, 3*time.Hour))
		started(t, w, tab)
		out := runNFT(t, "list ruleset")
		for _, want := range []string{
			w.Addr(10, 1).String() + " . tcp . 80 : 0x",
			"meta mark | 0x00000008 . " + rule.IPOf(w.Family).Name() + " saddr & ",
			"@source-ranges return",
			"tcp . 30010 : 0x",
			"map @backends",
			"typeof meta mark . numgen random mod 1 : " + rule.IPOf(w.Family).Name() + " daddr . th dport",
			"0x00000001 . 0 : ",
			"typeof meta mark . numgen random mod 1 : meta priority",
			" . 4 : 0:5",
			"numgen random mod 2",
			"timeout 3h",
			"masquerade fully-random",
			"priority dstnat",
			"typeof numgen random mod 1 . numgen random mod 1",
			"255 . 255",
			"@equal-bytes",
			"ct status dnat",
			"ct original ",
			". ct original proto-dst map @services",
			`comment "set id, slot -> backend"`,
			" : " + w.Addr(100, 500).String() + " . 8080",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("the listing does not show %q", want)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
	})
}
