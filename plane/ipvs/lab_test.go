//go:build linux

package ipvs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/test/ipvsfake"
	"kube-proxy/test/planetest"
)

// lab is a node without a kernel: IPVS is ipvsfake, which is as strict as a real one; ipsets,
// addresses and rules are maps. The conformance tests use the real ones.
type lab struct {
	ipvs *ipvsfake.Kernel
	conn *ipvs.Conn
	sets setTable
	devs map[lb.Family]*fakeDevice
	// others are addresses of other devices.
	others []netip.Addr
	rules  map[lb.Family]*rules
	// refuse, if not nil, is called before each operation on a member or address.
	refuse func(what string) error
	// stays records the persistent real server of each client.
	stays map[netip.Addr]netip.AddrPort
	// wrote counts operations on members and addresses.
	wrote int
	// counters is the planes' connection for reading counters; nil: they do not count.
	counters Counters
}

func newLab(t testing.TB) *lab {
	kernel := ipvsfake.New(ipvsfake.Config{})
	return labOf(kernel, connect(t, kernel))
}

func connect(t testing.TB, kernel *ipvsfake.Kernel) *ipvs.Conn {
	t.Helper()
	conn, err := ipvs.New(context.Background(), kernel.Connect())
	must(t, err)
	return conn
}

func labOf(kernel *ipvsfake.Kernel, conn *ipvs.Conn) *lab {
	k := &lab{ipvs: kernel, conn: conn, sets: setTable{}, devs: map[lb.Family]*fakeDevice{},
		rules: map[lb.Family]*rules{}}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		w := planetest.World{Family: f}
		k.others = append(k.others, w.Addr(192, 1), w.Addr(192, 77))
		k.devs[f] = &fakeDevice{lab: k, family: f}
		k.rules[f] = &rules{}
	}
	return k
}

func (k *lab) config(f lb.Family) Config {
	return Config{Family: f, Masquerade: 1 << 14, IPVS: k.conn, Sets: k, Device: k.devs[f], Chains: k.rules[f],
		Counters: k.counters, View: func() (*View, error) { return k.view(f) }}
}

func (k *lab) plane(t testing.TB, f lb.Family) *Plane {
	t.Helper()
	p := New(k.config(f))
	t.Cleanup(func() { p.Close() })
	return p
}

// started returns a lab with a plane that holds startTable.
func started(t testing.TB, f lb.Family) (*lab, *Plane, *lb.Table, planetest.World) {
	t.Helper()
	k, w := newLab(t), planetest.World{Family: f}
	table := startTable(w)
	return k, k.start(t, f, table), table, w
}

// start returns a plane that holds the table.
func (k *lab) start(t testing.TB, f lb.Family, table *lb.Table) *Plane {
	t.Helper()
	p := k.plane(t, f)
	must(t, only(planetest.ResetAll(context.Background(), p, table)))
	return p
}

// served is a lab with an IPv4 plane and its table.
type served struct {
	testing.TB
	*lab
	planetest.World
	p     *Plane
	table *lb.Table
}

func newServed(t testing.TB) served {
	w := planetest.World{Family: lb.IPv4}
	return served{TB: t, lab: newLab(t), World: w, table: w.Table(0, 0)}
}

// restart starts another process.
func (d *served) restart() {
	d.Helper()
	if d.p != nil {
		d.p.Close()
	}
	d.p = d.start(d.TB, d.Family, d.table)
}

func (d *served) reset() {
	d.Helper()
	must(d.TB, only(planetest.ResetAll(context.Background(), d.p, d.table)))
}

func (d *served) apply(o lb.Owner, fronts []*lb.Frontend) {
	d.Helper()
	must(d.TB, only(d.p.Apply(context.Background(), replaced(d.table, o, fronts))))
}

// connections gives each real server the number of connections that active returns.
func (k *lab) connections(active func() uint32) {
	for _, v := range k.ipvs.State() {
		for _, d := range v.Destinations {
			k.ipvs.SetConns(v.ServiceID, d.Addr, ipvsfake.Conns{Active: active()})
		}
	}
}

// refuses makes the kernel refuse a command about a virtual server.
func (k *lab) refuses(c ipvsfake.Command, id ipvs.ServiceID, errno unix.Errno) {
	k.ipvs.Before = func(r ipvsfake.Request) error {
		if r.Command == c && r.Service == id {
			return errno
		}
		return nil
	}
}

// find returns a virtual server.
func (k *lab) find(id ipvs.ServiceID) (v ipvsfake.VirtualServer, found bool) {
	for _, v := range k.ipvs.State() {
		if v.ServiceID == id {
			return v, true
		}
	}
	return v, false
}

// always returns n.
func always(n uint32) func() uint32 { return func() uint32 { return n } }

// hasten moves time to the next check of draining real servers, when no packets to them are on
// their way any more.
func hasten(p *Plane) {
	for s := range p.drains {
		if s.drain != nil {
			s.drain.next = time.Time{}
			for a, is := range s.drain.dests {
				is.left = time.Time{}
				s.drain.dests[a] = is
			}
		}
	}
}

var walk = flag.Uint64("walk", 0, "the one random walk to repeat")

// walks returns the seeds of n random walks, or the one to repeat.
func walks(n uint64) (seeds []uint64) {
	if *walk != 0 {
		return []uint64{*walk}
	}
	for seed := uint64(1); seed <= n; seed++ {
		seeds = append(seeds, seed)
	}
	return seeds
}

// familyOf returns the family of a walk: a third of them use IPv6.
func familyOf(seed uint64) lb.Family {
	if seed%3 == 0 {
		return lb.IPv6
	}
	return lb.IPv4
}

func (k *lab) allowed(what string) error {
	if k.refuse == nil {
		return nil
	}
	return k.refuse(what)
}

// setTable has all ipsets, each with its members' marks.
type setTable map[string]*fakeSet

type fakeSet struct {
	ipset.Set
	members map[ipset.Member]ipset.Member
}

func (k *lab) Ensure(_ context.Context, s ipset.Set) (bool, error) {
	if is := k.sets[s.Name]; is != nil {
		if is.Type != s.Type {
			return false, fmt.Errorf("ipset %s: %w", s.Name, ipset.ErrOther)
		}
		return false, nil
	}
	s.MaxElem = ipset.MaxElem
	k.sets[s.Name] = &fakeSet{s, map[ipset.Member]ipset.Member{}}
	return true, nil
}

func (k *lab) Members(ctx context.Context, name string, f func(ipset.Member)) (ipset.Header, error) {
	h, err := k.Header(ctx, name)
	if err != nil {
		return h, err
	}
	for _, m := range k.sets[name].members {
		f(m)
	}
	return h, nil
}

func (k *lab) Header(_ context.Context, name string) (ipset.Header, error) {
	s := k.sets[name]
	if s == nil {
		return ipset.Header{}, fmt.Errorf("ipset %s: %w", name, ipset.ErrNoSet)
	}
	return ipset.Header{Set: s.Set}, nil
}

func (k *lab) Do(ctx context.Context, ops []ipset.Op, failed func(int, error)) (first error) {
	for i, op := range ops {
		err := ctx.Err()
		if err == nil {
			err = k.allowed(op.String())
		}
		s := k.sets[op.Set.Name]
		switch {
		case err != nil:
		case s == nil:
			err = fmt.Errorf("%s: %w", op, ipset.ErrNoSet)
		case op.Delete:
			delete(s.members, op.Member.Key())
		default:
			s.members[op.Member.Key()] = op.Member
		}
		k.wrote++
		if err != nil {
			first = err
			failed(i, err)
		}
	}
	return first
}

// fakeDevice is kube-ipvs0 of a family.
type fakeDevice struct {
	lab    *lab
	family lb.Family
	made   bool
	addrs  map[netip.Addr]bool
	news   [2]bool
	notify func()
}

func (d *fakeDevice) Ensure(context.Context) error {
	if !d.made {
		d.made, d.addrs = true, map[netip.Addr]bool{}
	}
	return nil
}

func (d *fakeDevice) Addresses(context.Context) ([]netip.Addr, error) {
	if !d.made {
		return nil, ErrNoDevice
	}
	return slices.SortedFunc(maps.Keys(d.addrs), netip.Addr.Compare), nil
}

func (d *fakeDevice) change(ctx context.Context, what string, addrs []netip.Addr, failed func(int, error),
	f func(netip.Addr)) (first error) {
	for i, a := range addrs {
		err := ctx.Err()
		if err == nil {
			err = d.lab.allowed(what + " address " + a.String())
		}
		if err == nil && !d.made {
			err = ErrNoDevice
		}
		d.lab.wrote++
		if err != nil {
			first = err
			failed(i, err)
			continue
		}
		f(a)
	}
	return first
}

func (d *fakeDevice) Add(ctx context.Context, addrs []netip.Addr, failed func(int, error)) error {
	return d.change(ctx, "add", addrs, failed, func(a netip.Addr) { d.addrs[a] = true })
}

func (d *fakeDevice) Remove(ctx context.Context, addrs []netip.Addr, failed func(int, error)) error {
	return d.change(ctx, "remove", addrs, failed, func(a netip.Addr) { delete(d.addrs, a) })
}

func (d *fakeDevice) Place(context.Context) (p Place, err error) {
	p.Elsewhere = map[netip.Addr]bool{}
	for _, a := range d.lab.others {
		if lb.FamilyOf(a) != d.family {
			continue
		}
		p.Elsewhere[a] = true
		p.Own = append(p.Own, a)
	}
	slices.SortFunc(p.Own, netip.Addr.Compare)
	return p, nil
}

func (d *fakeDevice) News() (addresses, place bool) {
	n := d.news
	d.news = [2]bool{}
	return n[0], n[1]
}

func (d *fakeDevice) Notify(f func()) { d.notify = f }

// notice reports to the plane that other programs changed addresses on kube-ipvs0, or elsewhere.
func (d *fakeDevice) notice(addresses, place bool) {
	d.news = [2]bool{d.news[0] || addresses, d.news[1] || place}
	if d.notify != nil {
		d.notify()
	}
}

// rules stands for the chains.
type rules struct {
	text    string
	node    lb.Node
	spoil   func(xtables.ChainRule) bool // reports missing rules
	written func()                       // called when they are written
}

func (r *rules) Reset(_ context.Context, n lb.Node) error { return r.SetNode(context.Background(), n) }
func (r *rules) SetNode(_ context.Context, n lb.Node) error {
	r.node = n
	r.text = fmt.Sprintf("chains with KUBE-MARK-ANY and KUBE-6-MARK-ANY for %v %v\n", n.Pods, n.ServiceCIDRs)
	if r.written != nil {
		r.written()
	}
	return nil
}
func (r *rules) Audit(context.Context, bool) (int, error) { return 0, nil }
func (r *rules) Rules(context.Context) (all []xtables.ChainRule, err error) {
	for line := range strings.Lines(r.text) {
		all = append(all, xtables.ChainRule{Rule: line})
	}
	return all, nil
}

// kernel returns the lab as planetest.Verbs needs it.
func (k *lab) kernel() planetest.Kernel {
	return planetest.Kernel{
		New: func(f lb.Family) (planetest.Plane, error) { return New(k.config(f)), nil },
		Slow: func(f lb.Family) (planetest.Plane, error) {
			p := New(k.config(f))
			p.step = 10
			return p, nil
		},
		Damage:       k.damage,
		Wipe:         k.wipe,
		HealthChecks: true,
		FirstKeeps:   true,
	}
}

// damage changes something, as a program with the same rights could.
func (k *lab) damage(f lb.Family, rnd *rand.Rand) error { return k.harm(f, rnd, rnd.IntN(9)) }

// harm does one kind of damage.
func (k *lab) harm(f lb.Family, rnd *rand.Rand, kind int) error {
	ctx := context.Background()
	servers, err := serversOf(k.conn, f)
	if err != nil || len(servers) == 0 {
		return err
	}
	s := servers[rnd.IntN(len(servers))]
	dests, err := k.conn.Destinations(ctx, s.ServiceID)
	if err != nil {
		return err
	}
	do := func(verb ipvs.Verb, d ipvs.Destination) error {
		err := k.conn.Do(ctx, []ipvs.Op{{Verb: verb, Service: s, Destination: d}}, nil)
		if errors.Is(err, unix.EEXIST) { // from the last time: it drains
			return nil
		}
		return err
	}
	w := planetest.World{Family: f}
	switch kind {
	case 0:
		return do(ipvs.DelService, ipvs.Destination{})
	case 1:
		s.Scheduler, s.Flags = "lc", s.Flags^ipvs.Persistent
		s.Timeout = 77
		return do(ipvs.SetService, ipvs.Destination{})
	case 2:
		return do(ipvs.NewDestination, ipvs.Destination{Addr: netip.AddrPortFrom(w.Addr(100, 99999), 99), Weight: 3})
	case 3:
		if len(dests) > 0 {
			return do(ipvs.DelDestination, dests[rnd.IntN(len(dests))].Destination)
		}
	case 4:
		if len(dests) > 0 {
			d := dests[rnd.IntN(len(dests))].Destination
			d.Weight = int32(rnd.IntN(3))
			return do(ipvs.SetDestination, d)
		}
	case stray:
		s.Addr, s.Mark = netip.AddrPortFrom(w.Addr(10, 1), 7777), 0
		s.Proto = uint8(lb.TCP)
		return do(ipvs.NewService, ipvs.Destination{})
	case 6:
		for a := range k.devs[f].addrs {
			delete(k.devs[f].addrs, a)
			k.devs[f].notice(true, false)
			return nil
		}
	case 7:
		for _, name := range slices.Sorted(maps.Keys(k.sets)) {
			if set := k.sets[name]; len(set.members) > 0 && strings.Contains(name, "-6-") == (f == lb.IPv6) &&
				rnd.IntN(3) == 0 {
				for m := range set.members {
					delete(set.members, m)
					return nil
				}
			}
		}
	case 5:
		set := k.sets[setMarksAnywhere.name(f)]
		for m := range set.members {
			set.members[m] = ipset.Member{Addr: m.Addr, Port: m.Port, Proto: m.Proto, Mark: 1, Mask: 1}
			return nil
		}
	}
	return nil
}

// stray is the damage of a foreign virtual server at one of our addresses. It stays foreign when
// the address is no longer ours.
const stray = 8

// wipe removes everything.
func (k *lab) wipe(f lb.Family) error {
	for name := range k.sets {
		if strings.Contains(name, "-6-") == (f == lb.IPv6) {
			delete(k.sets, name)
		}
	}
	k.devs[f].made = false
	return deleteServers(k.conn, f)
}

// serversOf lists the virtual servers of a family.
func serversOf(conn *ipvs.Conn, f lb.Family) (all []ipvs.Service, err error) {
	err = conn.Services(context.Background(), func(s ipvs.ServiceState) error {
		if s.Family == wireFamily(f) {
			all = append(all, s.Service)
		}
		return nil
	})
	return all, err
}

// deleteServers deletes them.
func deleteServers(conn *ipvs.Conn, f lb.Family) error {
	servers, err := serversOf(conn, f)
	var ops []ipvs.Op
	for _, s := range servers {
		ops = append(ops, ipvs.Op{Verb: ipvs.DelService, Service: s})
	}
	return errors.Join(err, conn.Do(context.Background(), ops, nil))
}
