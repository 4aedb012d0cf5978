//go:build linux

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/plane/internal/slots"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/test/scenario"
	"kube-proxy/test/seedtest"
)

// history records which Service each set id ever belonged to, and which member each backend of a
// set has.
type history struct {
	sets    map[uint32]lb.SetID
	members map[uint32]map[netip.AddrPort]uint32
	most    map[uint32]int
}

// see records the numbers of a state, and reports a number that had another owner before.
func (h *history) see(st *state) error {
	for id, s := range st.sets {
		if was, ok := h.sets[s.id]; ok && was != id {
			return fmt.Errorf("set id %d was %s and is %s", s.id, was, id)
		}
		h.sets[s.id] = id
		h.most[s.id] = max(h.most[s.id], len(s.members))
		now, taken := map[netip.AddrPort]uint32{}, map[uint32]bool{}
		for i, m := range s.members {
			if was, ok := h.members[s.id][s.at(i)]; ok && was != m {
				return fmt.Errorf("member %d of set %d, which stayed, became %d", was, s.id, m)
			}
			if taken[m] || m == 0 || int(m) > h.most[s.id] {
				return fmt.Errorf("a backend of set %d, which had %d at most, has member %d", s.id, h.most[s.id], m)
			}
			now[s.at(i)], taken[m] = m, true
		}
		h.members[s.id] = now
	}
	return nil
}

// No change of a table ever reuses a set id or a member, and members are at most as many as the
// set's backends (SV-25, TN-32).
func TestNumbersAreNeverUsedAgain(t *testing.T) {
	kerneltest.Later(t)
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		seed := seedtest.Of(t)
		rnd := rand.New(rand.NewPCG(seed, 1))
		h := history{map[uint32]lb.SetID{}, map[uint32]map[netip.AddrPort]uint32{}, map[uint32]int{}}
		tab := &lb.Table{Node: w.Node()}
		p := newPlane(t, w.Family)
		reset(t, p, tab)
		for step := range 150 {
			i, did := rnd.IntN(4), ""
			switch rnd.IntN(9) {
			case 0:
				did = "restart"
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				p, _ = New(Config{Family: w.Family})
				reset(t, p, tab)
			case 1:
				did = "Reset"
				reset(t, p, tab)
			case 2:
				did = "another program removes elements; Reset"
				script := ""
				for _, m := range []string{"members", "member-backends", "set-shapes", "cluster-sets"} {
					script += "flush map " + p.ip.Name() + " kube-proxy " + m + "\n"
				}
				runNFT(t, script)
				clear(h.members)
				reset(t, p, tab)
			case 3:
				did = fmt.Sprintf("Service %d goes", i)
				apply(t, p, planetest.Changes(tab.Replace(lb.Owner{Name: name(w, i)}, nil)))
			default:
				first, n := rnd.IntN(20), rnd.IntN(6)
				did = fmt.Sprintf("Service %d has %d backends from %d", i, n, first)
				hours := time.Duration(1 + rnd.IntN(2))
				apply(t, p, planetest.Changes(tab.Replace(w.Full(i, first, n, min(n, rnd.IntN(3)), hours*time.Hour))))
			}
			if err := h.see(p.st); err != nil {
				t.Fatalf("step %d, %s: %v", step, did, err)
			}
		}
		if len(h.sets) < 25 {
			t.Errorf("only %d sets", len(h.sets))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// lead writes into the affinity map, for every place of a set, a member that packets would never
// put there.
func lead(t testing.TB, p *Plane, set lb.SetID, member uint32) {
	t.Helper()
	c := p.newChange(p.st)
	for place := range p.rules.places {
		key := wire.AppendNumber(wire.AppendNumber(nil, p.st.sets[set].id), place)
		c.out.Add(sAffinity, wire.AppendNumber(key, member))
	}
	runNFT(t, "flush map "+p.ip.Name()+" kube-proxy affinity")
	if err := p.commit(t.Context(), c.out); err != nil {
		t.Fatal(err)
	}
}

// entries counts the elements of the affinity map, in total and by set id.
func entries(t testing.TB, p *Plane) (all int, bySet map[uint32]int) {
	t.Helper()
	snap, _, err := p.readTable(t.Context(), func(d *wire.Set) bool { return d.Dynamic() })
	if err != nil {
		t.Fatal(err)
	}
	recs, bySet := snap.records[sAffinity], map[uint32]int{}
	for rec := range recs.All() {
		bySet[netlink.Order.Uint32(rec)]++
	}
	return recs.Len(), bySet
}

// shops are Services with affinity in a lab. The client reaches them from many addresses.
type shops struct {
	*netlab.TestLab
	t   *testing.T
	fam lb.Family
	p   *Plane
}

const shopClients = 48

func newShops(t *testing.T, fam lb.Family, change func(*Plane)) *shops {
	lab := netlab.ForTest(t, netlab.Options{NoNode2: true})
	lab.Serve(netlab.TCP, 8080, "pod1", "pod2")
	lab.Serve(netlab.TCP, 8081, "pod1", "pod2")
	s := &shops{TestLab: lab, t: t, fam: fam}
	lab.On(netlab.Client, func() {
		var batch strings.Builder
		for i := range shopClients {
			if fam == lb.IPv6 {
				fmt.Fprintf(&batch, "addr add %s/64 dev eth0 nodad\n", s.client(i))
			} else {
				fmt.Fprintf(&batch, "addr add %s/24 dev eth0\n", s.client(i))
			}
		}
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
	table := &lb.Table{}
	for i, port := range []uint16{8080, 8081} {
		var all []lb.Backend
		for _, pod := range []string{"pod1", "pod2"} {
			h, _ := netlab.HostByName(pod)
			all = append(all, lb.Backend{Addr: netip.AddrPortFrom(h.Addr(fam == lb.IPv6), port)})
		}
		set := &lb.BackendSet{ID: lb.SetID{Service: fmt.Sprint("shop/", i), Proto: lb.TCP, Scope: lb.Cluster},
			Backends: lb.BackendsOf(all...)}
		table.Replace(lb.Owner{Name: set.ID.Service},
			[]*lb.Frontend{{Key: lb.Key{Addr: s.vip(i), Port: 80, Proto: lb.TCP}, Service: set.ID.Service,
				Kind: lb.ClusterIP, Affinity: time.Hour,
				Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: set}}}})
	}
	lab.On(netlab.Node1, func() {
		s.p = newPlane(t, fam)
		change(s.p)
		s.p.readLayout = s.p.rules.layout
		reset(t, s.p, table)
	})
	return s
}

func (s *shops) vip(i int) netip.Addr {
	if s.fam == lb.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", 1+i))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", 1+i))
}

// client returns address i of the client.
func (s *shops) client(i int) netip.Addr {
	if s.fam == lb.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:18::1:%x", 1+i))
	}
	return netip.MustParseAddr(fmt.Sprintf("172.18.0.%d", 101+i))
}

// visit connects a client to a Service and returns the pod that answers.
func (s *shops) visit(client, service int) netip.Addr {
	s.t.Helper()
	r, err := s.Dial(netlab.Client, netlab.TCP, netip.AddrPortFrom(s.vip(service), 80),
		netlab.DialOptions{Timeout: 20 * time.Second, Local: netip.AddrPortFrom(s.client(client), 0)})
	if err != nil {
		s.t.Fatal(err)
	}
	if want := uint16(8080 + service); r.At.Port() != want {
		s.t.Fatalf("Service %d answered from %s", service, r.At)
	}
	return r.At.Addr()
}

// faithful checks that each client of a Service reaches the same pod each time, and that the
// clients use several pods.
func (s *shops) faithful(service int) {
	s.t.Helper()
	pods := map[netip.Addr]int{}
	for i := range shopClients {
		pod := s.visit(i, service)
		pods[pod]++
		for range 3 {
			if again := s.visit(i, service); again != pod {
				s.t.Errorf("client %d of Service %d came to %s, then to %s", i, service, pod, again)
			}
		}
	}
	if len(pods) != 2 {
		s.t.Errorf("of %d clients all came to one pod", shopClients)
	}
}

// The clients of one Service use at most its places, and all of them stay with their pods. Those of
// another Service have their own places.
func TestAffinityPlaces(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		s := newShops(t, w.Family, func(p *Plane) { p.rules.places, p.rules.sets[sAffinity].Size = 16, 32 })
		s.faithful(0)
		s.On(netlab.Node1, func() {
			if all, _ := entries(t, s.p); all < 8 || all > 16 {
				t.Errorf("%d entries of %d clients with 16 places", all, shopClients)
			}
		})
		s.faithful(1)
		s.On(netlab.Node1, func() {
			_, by := entries(t, s.p)
			if len(by) != 2 {
				t.Errorf("entries by set id: %v", by)
			}
			for id, n := range by {
				if n > 16 {
					t.Errorf("%d entries of set %d", n, id)
				}
			}
			// A NodePort with the number of a Service's port leads none of its clients elsewhere.
			f := *s.p.st.rows[lb.Key{Addr: s.vip(1), Port: 80, Proto: lb.TCP}].front
			f.Key, f.Kind = lb.Key{Port: 80, Proto: lb.TCP}, lb.NodePort
			apply(t, s.p, []lb.Change{{Key: f.Key, New: &f}})
			id := f.Set(lb.Cluster).ID
			lead(t, s.p, id, s.p.st.sets[id].members[0])
		})
		s.faithful(0)
	})
}

// When other Services have filled the map, clients without a place stay with their pods by the hash
// of their addresses.
func TestAffinityWithoutRoom(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		s := newShops(t, w.Family, func(p *Plane) { p.rules.places, p.rules.sets[sAffinity].Size = 16, 8 })
		fill := func() {
			c := s.p.newChange(s.p.st)
			for i := range uint32(8) {
				c.out.Add(sAffinity, wire.AppendNumber(wire.AppendNumber(wire.AppendNumber(nil, 77), i), 1))
			}
			if err := s.p.commit(t.Context(), c.out); err != nil {
				t.Fatal(err)
			}
		}
		s.On(netlab.Node1, fill)
		s.faithful(0)
		s.On(netlab.Node1, func() {
			if all, by := entries(t, s.p); all != 8 || by[77] != 8 {
				t.Errorf("%d entries, by set id %v", all, by)
			}
		})
	})
}

func withoutHash(p *Plane) {
	p.rules.hashes = false
	p.rules.sets = schema(p.ip, false)
	p.readLayout = p.rules.layout
}

// scenarios returns a folder with the scenarios that match a pattern, and the number of files.
func scenarios(t *testing.T, pattern string) (dir string, n int) {
	t.Helper()
	all, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, pattern := range []string{pattern, filepath.Join(all, "lab.yaml")} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			n++
			f, err = filepath.Abs(f)
			if err == nil {
				err = os.Symlink(f, filepath.Join(dir, filepath.Base(f)))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir, n
}

// The session affinity scenarios also pass on a kernel that cannot hash.
func TestConformanceWithoutHash(t *testing.T) {
	from, err := scenario.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir, n := scenarios(t, filepath.Join(from, "*affinity*.txtar"))
	if n < 8 {
		t.Fatalf("%d files", n)
	}
	planetest.Run(t, planetest.Config{Mode: "nftables-without-hash", Variant: true, Dir: dir,
		New: func(f lb.Family) (planetest.Plane, error) {
			p, err := New(Config{Family: f})
			if err == nil {
				withoutHash(p)
			}
			return p, err
		}})
}

// Probing the kernel for expressions leaves no trace.
func TestProbeOfExpressions(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		inNetns(t)
		p := newPlane(t, w.Family)
		if !p.rules.hashes {
			t.Error("this kernel cannot hash") // all kernels of the suite can
		}
		before, err := p.sock.Generation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		asked := p.rules.New("", rule.SetMark(p.ip.Hash(2, 1)))
		for _, name := range []string{"hash", "hush"} {
			want := name == "hush"
			asked.Expressions = bytes.ReplaceAll(asked.Expressions, []byte("hash\x00"), []byte(name+"\x00"))
			got, err := p.lacks(t.Context(), asked)
			if got != want || err != nil {
				t.Errorf("%s: %t, %v", name, got, err)
			}
		}
		if after, err := p.sock.Generation(t.Context()); after != before || err != nil {
			t.Errorf("the ruleset went from generation %d to %d, %v", before, after, err)
		}
	})
}

// A Reset replaces a table whose numbers are used up or unrecorded; clients lose their affinity.
func TestTableWithoutNumbers(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	for name, spoil := range map[string]string{
		"set ids used up": "delete element ip kube-proxy reserved { 1 }; " +
			"add element ip kube-proxy reserved { 1 : 0x7fffffff }",
		"removed": "delete element ip kube-proxy reserved { 3 }",
		"emptied": "flush map ip kube-proxy reserved",
	} {
		t.Run(name, func(t *testing.T) {
			tab := w.Table(2, 2)
			tab.Replace(w.Full(2, 10, 3, 1, time.Hour))
			p := started(t, w, tab)
			lead(t, p, lb.SetID{Service: "ns/svc-2:http", Proto: lb.TCP, Scope: lb.Cluster}, 1)
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			runNFT(t, spoil)
			q := newPlane(t, w.Family)
			tab.Replace(w.Full(2, 10, 4, 1, time.Hour))
			tab.Replace(w.Full(3, 20, 2, 1, time.Hour))
			reset(t, q, tab)
			if all, _ := entries(t, q); all != 0 {
				t.Errorf("%d entries are left", all)
			}
			isFresh(t, q, tab)
		})
	}
}

// A process that uses up the numbers returns an error, and the following Reset creates a new table.
func TestNumbersEndWhileRunning(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := w.Table(2, 2)
	p := started(t, w, tab)
	p.st.ids.Last, p.st.ids.Reserved = slots.End-2, slots.End+slots.Block
	o, f := w.Full(3, 20, 3, 1, time.Hour)
	changes, _ := tab.Replace(o, f)
	if _, err := p.Apply(t.Context(), changes); !errors.Is(err, plane.ErrStateLost) {
		t.Fatalf("%v, want %v", err, plane.ErrStateLost)
	}
	p.st.ids.Reserved = 0
	runNFT(t, "delete element ip kube-proxy reserved { 1 }; add element ip kube-proxy reserved { 1 : 0x7fffffff }")
	reset(t, p, tab)
	if n := p.st.ids.Last; n == 0 || n > 100 {
		t.Errorf("the new table is at set id %d", n)
	}
	isFresh(t, p, tab)
}

// The estimated usage of the map is close to the real one, and names the Services that fill it.
func TestAffinityUse(t *testing.T) {
	eachFamily(t, func(t *testing.T, w planetest.World) {
		tab := &lb.Table{Node: w.Node()}
		for i := range 4 {
			tab.Replace(w.Full(i, 10*i, 3, 0, time.Hour))
		}
		p := started(t, w, tab)
		lead(t, p, lb.SetID{Service: "ns/svc-2:http", Proto: lb.TCP, Scope: lb.Cluster}, 1)
		if _, err := p.Audit(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		use := p.use.Load()
		if n := affinityPlaces; use == nil || use.entries < n/2 || use.entries > n*3/2 || use.limit != affinityLimit {
			t.Fatalf("%+v for %d entries of %d", use, n, affinityLimit)
		}
		if !slices.Equal(use.busiest, []string{"ns/svc-2:http"}) {
			t.Errorf("the busiest are %q", use.busiest)
		}
	})
}

// A Service with affinity and more endpoints than a set can hold is served. Each node chooses some,
// which differ from another node's, and keeps its choice.
func TestAffinityOfManyBackends(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	tab := &lb.Table{Node: w.Node()}
	p := started(t, w, tab)
	of := func(first, n int) (lb.Owner, []*lb.Frontend) {
		o, f := w.ClusterIP(0, first, n)
		f[0].Affinity = time.Hour
		return o, f
	}
	held := func(p *Plane) map[netip.AddrPort]bool {
		m := map[netip.AddrPort]bool{}
		for _, s := range p.st.sets {
			for _, ap := range s.slots() {
				m[ap] = true
			}
		}
		return m
	}
	apply(t, p, planetest.Changes(tab.Replace(of(0, 100))))
	apply(t, p, planetest.Changes(tab.Replace(of(0, 20_000))))
	before := held(p)
	if len(before) != maxStickySlots {
		t.Fatalf("%d of 20,000 backends are served, want %d", len(before), maxStickySlots)
	}
	high := 0
	for ap := range before {
		if ap.Addr().Compare(w.Addr(100, maxStickySlots)) >= 0 {
			high++
		}
	}
	if high < 3000 || high > 4200 { // of 4,640
		t.Errorf("%d of the last 4,640 backends are served", high)
	}
	sent := p.Stats()
	apply(t, p, planetest.Changes(tab.Replace(of(100, 19_900)))) // the first hundred leave
	stay := 0
	for ap := range held(p) {
		if before[ap] {
			stay++
		}
	}
	if bytes := p.Stats().minus(sent).Bytes; stay < maxStickySlots-100 || bytes > 100_000 {
		t.Errorf("when 100 left, %d of %d stayed, and %d bytes were sent", stay, maxStickySlots, bytes)
	}
	dump(t, p)
	reset(t, p, tab) // drops the chain for 100 backends
	q := newPlane(t, w.Family)
	reset(t, q, tab)
	if s := q.Stats(); s.Batches != 0 {
		t.Errorf("a restart sent %+v", s)
	}
}
