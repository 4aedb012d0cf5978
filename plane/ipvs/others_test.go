//go:build linux

package ipvs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// foreign creates foreign virtual servers, with one real server each.
func (k *lab) foreign(t *testing.T, ids ...ipvs.ServiceID) {
	t.Helper()
	for _, id := range ids {
		s := ipvs.Service{ServiceID: id, Scheduler: "wlc", Netmask: id.Family.WholeAddress()}
		must(t, k.conn.Do(t.Context(), []ipvs.Op{{Verb: ipvs.NewService, Service: s},
			{Verb: ipvs.NewDestination, Service: s, Destination: ipvs.Destination{
				Addr: netip.MustParseAddrPort("192.168.9.9:9"), Weight: 9}}}, nil))
	}
}

func (k *lab) scheduler(id ipvs.ServiceID) string {
	if v, found := k.find(id); found {
		return v.Scheduler
	}
	return "none"
}

// Foreign virtual servers stay if nothing shows that they are a kube-proxy's, whatever their marks
// and addresses. The plane takes over one with exactly a Service's key, or leaves it alone if
// --ipvs-exclude-cidrs contains it; then only that frontend is not served.
func TestOthersVirtualServers(t *testing.T) {
	w := planetest.World{Family: lb.IPv4}
	byAddr := func(a netip.Addr, port uint16) ipvs.ServiceID {
		return ipvs.ByAddr(netip.AddrPortFrom(a, port), uint8(lb.TCP))
	}
	elsewhere, mark := byAddr(netip.MustParseAddr("192.168.1.1"), 80), ipvs.ByMark(ipvs.IPv4, 7)
	ours := byAddr(w.Addr(10, 1), 80)      // of Service 0
	protected := byAddr(w.Addr(10, 2), 80) // of Service 1
	onOurs := byAddr(w.Addr(10, 3), 9999)  // another port of Service 2
	k := newLab(t)
	k.foreign(t, elsewhere, mark, ours, protected)
	cfg := k.config(lb.IPv4)
	cfg.ExcludeCIDRs = []netip.Prefix{netip.PrefixFrom(w.Addr(10, 2), 32), netip.MustParsePrefix("192.168.0.0/16")}
	p := New(cfg)
	t.Cleanup(func() { p.Close() })
	table := w.Table(4, 2)
	check := func(when string) {
		t.Helper()
		for id, want := range map[ipvs.ServiceID]string{elsewhere: "wlc", mark: "wlc", ours: "rr", protected: "wlc",
			byAddr(w.Addr(10, 3), 80): "rr"} {
			if got := k.scheduler(id); got != want {
				t.Errorf("%s: %s has scheduler %s, want %s", when, id, got, want)
			}
		}
	}
	res, err := p.Reset(t.Context(), table)
	must(t, err)
	check("reset")
	if len(res.Later) != 1 || res.Later[0] != keyOf(protected) {
		t.Errorf("left for later: %v, want what another has", res.Later)
	}
	_, err = p.Apply(t.Context(), []lb.Change{{Key: keyOf(protected), New: table.Get(keyOf(protected))}})
	if err == nil || !strings.Contains(err.Error(), "--ipvs-exclude-cidrs") ||
		!strings.Contains(err.Error(), keyOf(protected).String()) {
		t.Errorf("the error is %v", err)
	}
	var reported []string
	for _, n := range p.Notices() {
		reported = append(reported, n.Text)
	}
	if !strings.Contains(strings.Join(reported, "\n"), "Virtual servers of others have") {
		t.Errorf("reported: %q", reported)
	}
	// A restart without other changes is no failure either.
	if again, err := p.Reset(t.Context(), table); err != nil || len(again.Later) != 1 {
		t.Errorf("restart: %v left for later, %v", again.Later, err)
	}
	k.foreign(t, onOurs)
	if _, err := p.Audit(t.Context(), true); err != nil {
		t.Errorf("audit: %v", err)
	}
	check("audit")
	if k.scheduler(onOurs) != "none" {
		t.Error("a virtual server at another port of a Service's address stays")
	}
	// The frontend is removed, and the foreign server stays; it also stays when all frontends are
	// removed.
	if _, err := p.Apply(t.Context(), []lb.Change{{Key: keyOf(protected)}}); err != nil {
		t.Error(err)
	}
	must(t, only(p.Reset(t.Context(), w.Table(0, 0))))
	for _, id := range []ipvs.ServiceID{elsewhere, mark, protected} {
		if k.scheduler(id) != "wlc" {
			t.Errorf("%s is gone with our Services", id)
		}
	}
	if n := len(k.ipvs.State()); n != 3 {
		t.Errorf("%d virtual servers are left", n)
	}
}

// The plane removes a NodePort at an address that the node lost while no proxy ran.
func TestNodePortAtAddressThatLeft(t *testing.T) {
	d := newServed(t)
	d.table.Node.NodePorts = []netip.Prefix{lb.IPv4.Everywhere()}
	key := lb.Key{Port: 30010, Proto: lb.TCP}
	d.table.Replace(lb.Owner{Name: "ns/np"}, []*lb.Frontend{{Key: key, Service: "ns/np:http", Kind: lb.NodePort,
		Routes: []lb.Route{{From: lb.Anywhere, Do: lb.Balance, To: d.Set("ns/np:http", lb.Cluster, 1, 2)}}}})
	d.restart()
	key.Addr = d.Addr(192, 77)
	if d.scheduler(serviceOf(key)) != "rr" {
		t.Fatalf("%s is not served", key)
	}
	d.others = []netip.Addr{d.Addr(192, 1)}
	d.restart()
	if d.scheduler(serviceOf(key)) != "none" {
		t.Errorf("%s stays", key)
	}
}

// If rules use an ipset with our name and another type, the error names it.
func TestOthersIPSet(t *testing.T) {
	k, p := newLab(t), (*Plane)(nil)
	for _, s := range []set{setClusterIP, setMarksAnywhere} {
		name := s.name(lb.IPv4)
		k.sets = setTable{name: &fakeSet{ipset.Set{Name: name, Type: ipset.HashIP}, nil}}
		p = k.plane(t, lb.IPv4)
		if _, err := p.Reset(t.Context(), startTable(planetest.World{Family: lb.IPv4})); !errors.Is(err,
			ipset.ErrOther) || !strings.Contains(err.Error(), name) {
			t.Errorf("another program's %s: %v", name, err)
		}
	}
}

// The plane could not create a virtual server, and another program then creates it, with or without
// a real server: an audit takes it over.
func TestOthersMakeWhatCouldNotBeMade(t *testing.T) {
	for _, dests := range []int{0, 1} {
		k, p, table, w := started(t, lb.IPv4)
		o, f := w.ClusterIP(30, 7, 2)
		theirs := ipvs.Op{Verb: ipvs.NewService, Service: ipvs.Service{ServiceID: serviceOf(f[0].Key), Scheduler: "rr",
			Netmask: ipvs.IPv4.WholeAddress()}}
		k.refuses(ipvsfake.NewService, theirs.Service.ServiceID, unix.EPERM)
		if _, err := p.Apply(t.Context(), replaced(table, o, f)); !errors.Is(err, unix.EPERM) {
			t.Fatalf("a virtual server that cannot be made: %v", err)
		}
		k.ipvs.Before = nil
		ops := []ipvs.Op{theirs}
		for range dests {
			ops = append(ops, ipvs.Op{Verb: ipvs.NewDestination, Service: theirs.Service, Destination: ipvs.Destination{
				Addr: f[0].Set(lb.Cluster).Backends.At(0).Addr, Weight: 3}})
		}
		must(t, k.conn.Do(t.Context(), ops, nil))
		// As if an audit could not list the real servers of all.
		p.unread = []ipvs.ServiceID{probeID(lb.IPv4)}
		must(t, only(p.Audit(t.Context(), true)))
		if serve, all := k.weights(f[0].Key); serve != 2 || all != 2 {
			t.Errorf("made by others with %d real servers: %d of %d serve, want 2", dests, serve, all)
		}
	}
}

// Another program deletes a virtual server in each round of a write: the next audit creates it.
func TestOthersDeleteInEachRound(t *testing.T) {
	k, p, table, w := started(t, lb.IPv4)
	other := connect(t, k.ipvs)
	o, f := w.ClusterIP(30, 7, 2)
	id := serviceOf(f[0].Key)
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command == ipvsfake.NewDest && r.Service == id {
			deletes := ipvs.Op{Verb: ipvs.DelService, Service: ipvs.Service{ServiceID: id}}
			return other.Do(t.Context(), []ipvs.Op{deletes}, nil)
		}
		return nil
	}
	must(t, only(p.Apply(t.Context(), replaced(table, o, f))))
	k.ipvs.Before = nil
	if k.scheduler(id) != "none" {
		t.Fatal("the virtual server exists, so this test proves nothing")
	}
	select {
	case <-p.Drift():
	default:
		t.Error("no audit was requested")
	}
	must(t, only(p.Audit(t.Context(), false)))
	if serve, all := k.weights(f[0].Key); serve != 2 || all != 2 {
		t.Errorf("after an audit %d of %d real servers serve, want 2", serve, all)
	}
}
