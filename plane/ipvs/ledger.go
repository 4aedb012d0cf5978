package ipvs

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// ledger has all objects of a plane twice: as frontends need them, and as the kernel has them. It
// counts references to objects, so that the cost of a change follows the change. It does no I/O.
type ledger struct {
	layout
	rows map[lb.Key]*lb.Frontend
	// nodePorts are the addresses that answer NodePorts, sorted. elsewhere are addresses of other
	// interfaces, which are not bound to kube-ipvs0 (DP-31).
	nodePorts []netip.Addr
	elsewhere map[netip.Addr]bool
	// own are the node's addresses without those of kube-ipvs0; pods and services are the networks
	// of pods and of cluster IPs.
	own            []netip.Addr
	pods, services []netip.Prefix
	// apiServers are addresses that no Service gets provisionally (TN-66).
	apiServers []netip.Addr
	// byPort are the keys of NodePorts.
	byPort map[lb.Key]struct{}
	// ranges counts the source ranges of all keys of a Service.
	ranges map[string]int
	// backends counts the backends at an address.
	backends map[netip.Addr]int32
	// yields records, while a table is loaded, who owns each conflicting address: true for the
	// backend.
	yields map[netip.Addr]bool
	// withheld are the virtual servers without real servers at an address, because the address is a
	// Service's.
	withheld map[netip.Addr]map[*virtual]struct{}

	servers map[ipvs.ServiceID]*virtual
	members map[member]counted
	addrs   map[netip.Addr]address
	others  map[other]*virtual
	numbers numbers
	// late counts references to virtual servers for which no number was free; they use one that
	// rejects.
	late map[other]int32

	touched touched
	round   uint32 // how often the members were listed
}

// touched are the objects that a change affects, which may have to be written, each with a key of
// the change.
type touched struct {
	servers map[*virtual]lb.Key
	members map[member]lb.Key
	addrs   map[netip.Addr]lb.Key
}

// counted is a member of an ipset: its references and its mark, and whether the kernel has it, and
// with which mark.
type counted struct {
	refs     int32
	has      bool
	want, is mark
	round    uint32 // the ledger.round that last listed it
}

// right reports whether no write is needed.
func (e counted) right() bool { return e.has == (e.refs > 0) && (!e.has || e.want == e.is) }

// address is a service address: its references, those of cluster IPs, and whether kube-ipvs0 has
// it.
type address struct {
	refs, firm int32
	has        bool
	// yields: the address is provisional, and a backend had it before.
	yields bool
}

// virtual is a virtual server.
type virtual struct {
	id    ipvs.ServiceID
	proto lb.Proto // 0 if it goes by a mark and was found

	// The desired state. It exists while refs > 0; refs of an address is 1 at most.
	refs int32
	want ipvs.Service
	set  *lb.BackendSet // nil for no real servers
	of   *other         // if it goes by a mark
	bind binding        // how its address counts in ledger.addrs
	// serving, if not nil, has backends that are not in set and keep their flows.
	serving *lb.BackendSet
	// withheld are the addresses of set that have no real server, see [ledger.withholds].
	withheld []netip.Addr

	// As the kernel has it.
	has   bool
	is    ipvs.Service
	dests map[netip.AddrPort]dest
	drain *draining // non-nil if real servers must be removed after their connections end
	// leaving: no frontend needs it, and its real servers drain.
	leaving bool
	// made: it was created after the last [counters.follow]. Otherwise found is the kernel's
	// count when it was found.
	made  bool
	found mode.Traffic
}

// dest is a real server in the kernel. Its weight is 1, or 0 without new connections; it is unknown
// if another program wrote it.
type dest struct{ weight, forwarding int32 }

const unknown = -1

func newLedger(l layout) *ledger {
	return &ledger{
		layout: l, rows: map[lb.Key]*lb.Frontend{}, elsewhere: map[netip.Addr]bool{},
		byPort: map[lb.Key]struct{}{}, ranges: map[string]int{}, backends: map[netip.Addr]int32{},
		withheld: map[netip.Addr]map[*virtual]struct{}{},
		servers:  map[ipvs.ServiceID]*virtual{}, members: map[member]counted{}, addrs: map[netip.Addr]address{},
		others: map[other]*virtual{}, late: map[other]int32{}, numbers: numbers{used: map[uint32]bool{}},
		touched: newTouched(),
	}
}

func newTouched() touched {
	return touched{map[*virtual]lb.Key{}, map[member]lb.Key{}, map[netip.Addr]lb.Key{}}
}

// effective returns the frontend that decides for a key with an address: its own, or a NodePort's,
// or nil.
func (l *ledger) effective(k lb.Key) *lb.Frontend {
	if row := l.rows[k]; row != nil && !row.Accepts() {
		return row
	}
	if _, answers := slices.BinarySearchFunc(l.nodePorts, k.Addr, netip.Addr.Compare); answers {
		if row := l.rows[lb.Key{Port: k.Port, Proto: k.Proto}]; row != nil && !row.Accepts() {
			return row
		}
	}
	return nil
}

// set replaces the frontend of a key; nil removes it. The error reports that the Service has too
// many ranges, so that the key serves no client.
func (l *ledger) set(key lb.Key, row *lb.Frontend) error {
	row, err := l.bounded(l.rows[key], row)
	l.change(key, lb.Expand(key, l.nodePorts), func() {
		if old := l.rows[key]; old != nil {
			l.countRow(key, old, -1)
		}
		if row == nil {
			delete(l.rows, key)
		} else {
			l.rows[key] = row
			l.countRow(key, row, +1)
		}
		delete(l.byPort, key)
		if row != nil && key.IsNodePort() && !row.Accepts() {
			l.byPort[key] = struct{}{}
		}
	})
	return err
}

// change applies a change to the frontends of keys. It counts the new objects before it uncounts
// the old ones, so that objects of both are not touched.
func (l *ledger) change(key lb.Key, keys iter.Seq[lb.Key], change func()) {
	var all []lb.Key
	var before []front
	for k := range keys {
		if k.Addr.IsValid() { // a health check has no address
			all = append(all, k)
			before = append(before, l.frontOf(k))
		}
	}
	change()
	for i, k := range all {
		after := l.frontOf(k)
		l.countFront(key, &after, +1)
		l.countFront(key, &before[i], -1)
		l.point(key, k, &after)
	}
}

func (l *ledger) frontOf(k lb.Key) front {
	if row := l.effective(k); row != nil {
		return l.front(k, row)
	}
	return front{}
}

// countRow counts the objects that a frontend has once.
func (l *ledger) countRow(key lb.Key, row *lb.Frontend, by int32) {
	for _, m := range l.layout.members(row) {
		l.count(key, m, mark{}, by)
	}
	for _, r := range row.Routes {
		if r.Do != lb.Balance {
			continue
		}
		for b := range r.To.Backends.All() {
			l.countBackend(key, b.Addr.Addr(), by)
		}
	}
}

// countBackend counts the backends at an address. While the count is positive, a provisional
// address may stay unbound.
func (l *ledger) countBackend(key lb.Key, a netip.Addr, by int32) {
	is := l.addrs[a]
	before := is.yields && l.binds(a, is)
	setOrDelete(l.backends, a, l.backends[a]+by)
	if is.yields {
		is.yields = l.backends[a] > 0
		setOrDelete(l.addrs, a, is)
		l.rebound(key, a, before)
	}
}

// countFront counts members, and virtual servers by mark.
func (l *ledger) countFront(key lb.Key, f *front, by int32) {
	for _, m := range f.members {
		l.count(key, m, mark{}, by)
	}
	for _, m := range f.marks {
		if m.other != nil {
			s := l.other(*m.other)
			s.refs += by
			switch late := s.of.set != m.other.set; {
			case late:
				setOrDelete(l.late, *m.other, l.late[*m.other]+by)
			case by > 0:
				s.set, s.serving = m.to, m.serving
			}
			l.touched.servers[s] = key
			m.mark = mark{s.id.Mark, wholeMark}
		}
		l.count(key, m.member, m.mark, by)
	}
}

// count counts references to a member. The last added reference decides its mark.
func (l *ledger) count(key lb.Key, m member, as mark, by int32) {
	e := l.members[m]
	e.refs += by
	if by > 0 {
		e.want = as
	}
	l.put(m, e)
	l.touched.members[m] = key
}

func (l *ledger) put(m member, e counted) {
	if e.refs == 0 && !e.has {
		delete(l.members, m)
	} else {
		l.members[m] = e
	}
}

// point updates the virtual server of a key.
func (l *ledger) point(key, k lb.Key, f *front) {
	id := serviceOf(k)
	s := l.servers[id]
	wanted := f.service.Scheduler != ""
	if s == nil && !wanted {
		return
	}
	if s == nil {
		s = &virtual{id: id, proto: k.Proto}
		l.servers[id] = s
	}
	s.refs = 0
	s.set, s.serving = f.set, f.serving
	if wanted {
		l.leave(key, s, false)
		s.refs, s.want = 1, f.service
		l.bind(key, s, f.bind)
	}
	l.touched.servers[s] = key
}

// leave records that a virtual server without frontends stays for its connections, or no longer
// does. New connections are dropped meanwhile, or refused at the node's own addresses. The member
// also shows a later process that the virtual server is ours.
func (l *ledger) leave(key lb.Key, s *virtual, leaving bool) {
	if s.leaving == leaving {
		return
	}
	s.leaving = leaving
	by := int32(-1)
	if leaving {
		by = 1
	}
	if s.id.Mark == 0 { // a mark identifies itself
		k := keyOf(s.id)
		as := mark{l.mark.drop(), wholeMark}
		if s.bind == unbound || l.elsewhere[k.Addr] {
			// The node's own address refuses without a listener, and so does a virtual server
			// without weights.
			as = mark{}
		}
		l.count(key, leavingMember(k), as, by)
	}
}

// leavingMember is the member of a virtual server by address that leaves, see [ledger.leave].
func leavingMember(k lb.Key) member {
	return member{set: setMarksAnywhere, addr: k.Addr, port: k.Port, proto: k.Proto}
}

// taken reports whether another device has the address of a virtual server that is not a
// NodePort's: the plane must not block other listeners there.
func (l *ledger) taken(s *virtual) bool {
	return s.id.Mark == 0 && s.bind != unbound && l.elsewhere[s.id.Addr.Addr()]
}

// bind counts the address of a virtual server with its kind of binding.
func (l *ledger) bind(key lb.Key, s *virtual, as binding) {
	if s.bind == as {
		return
	}
	a := s.id.Addr.Addr()
	is := l.addrs[a]
	before := l.binds(a, is)
	fresh := is.refs == 0
	is.count(s.bind, -1)
	is.count(as, +1)
	switch s.bind = as; {
	case is.refs == 0:
		is.yields = false
	case fresh:
		is.yields = as == provisional && l.yield(a, is)
	}
	setOrDelete(l.addrs, a, is)
	l.rebound(key, a, before)
}

func (is *address) count(as binding, by int32) {
	if as != unbound {
		is.refs += by
	}
	if as == bound {
		is.firm += by
	}
}

// yield reports whether a newly provisional address stays with the backend that had it before. So
// neither the author of a Service nor of an endpoint can take an address from another (TN-61).
func (l *ledger) yield(a netip.Addr, is address) bool {
	if yields, contested := l.yields[a]; contested {
		delete(l.yields, a)
		return yields
	}
	return l.backends[a] > 0 && !is.has
}

// conflict decides who had each provisional address of the table first, if it is also a backend's.
// If kube-ipvs0 or the set of its addresses has it, the Service was first. If they lack it and its
// virtual server exists, the backend was. On a new node the older Service gets it, as it would get
// a key.
func (l *ledger) conflict(want *lb.Table) {
	first, served := map[netip.Addr]lb.Owner{}, map[netip.Addr]bool{}
	for row := range want.All() {
		if bindingOf(row) != provisional {
			continue
		}
		a, owner := row.Key.Addr, want.Owner(row.Key)
		if before, found := first[a]; !found || owner.Compare(before) < 0 {
			first[a] = owner
		}
		s := l.servers[serviceOf(row.Key)]
		served[a] = served[a] || s != nil && s.has
	}
	l.yields = map[netip.Addr]bool{}
	if len(first) == 0 {
		return
	}
	for row := range want.All() {
		for _, r := range row.Routes {
			if r.To == nil {
				continue
			}
			for b := range r.To.Backends.All() {
				a := b.Addr.Addr()
				if lender, found := first[a]; found && !l.yields[a] {
					had := l.addrs[a].has || l.members[member{set: setIPs, addr: a}].has
					l.yields[a] = !had && (served[a] || want.Owner(row.Key).Compare(lender) < 0)
				}
			}
		}
	}
}

// setOrDelete sets an entry of a map that keeps no zero values.
func setOrDelete[K, V comparable](m map[K]V, key K, value V) {
	var zero V
	m[key] = value
	if value == zero {
		delete(m, key)
	}
}

// binds reports whether kube-ipvs0 must have the address.
func (l *ledger) binds(a netip.Addr, is address) bool {
	return is.refs > 0 && !l.elsewhere[a] && (is.firm > 0 || !(is.yields && l.backends[a] > 0) &&
		!lb.Within(l.pods, a) && !slices.Contains(l.apiServers, a))
}

// withholds reports whether virtual servers have no real servers at an address, because it is one
// of kube-ipvs0 or of the service network: IPVS would send clients to programs of this node, behind
// its firewall (TN-62).
func (l *ledger) withholds(a netip.Addr) bool {
	is := l.addrs[a]
	return is.has || l.binds(a, is) || lb.Within(l.services, a)
}

// rebound updates the ipset of addresses for one address.
func (l *ledger) rebound(key lb.Key, a netip.Addr, before bool) {
	if now := l.binds(a, l.addrs[a]); now != before {
		by := int32(-1)
		if now {
			by = 1
		}
		l.count(key, member{set: setIPs, addr: a}, mark{}, by)
		l.retarget(key, a, now)
	}
	l.touched.addrs[a] = key
}

// withhold records the addresses at which a virtual server lacks real servers.
func (l *ledger) withhold(s *virtual, addrs []netip.Addr) {
	for _, a := range s.withheld {
		delete(l.withheld[a], s)
		if len(l.withheld[a]) == 0 {
			delete(l.withheld, a)
		}
	}
	s.withheld = addrs
	for _, a := range addrs {
		if l.withheld[a] == nil {
			l.withheld[a] = map[*virtual]struct{}{}
		}
		l.withheld[a][s] = struct{}{}
	}
}

// retarget touches the virtual servers whose real servers at an address must be added or removed,
// because the address is bound or no longer is.
func (l *ledger) retarget(key lb.Key, a netip.Addr, bound bool) {
	if !bound {
		for s := range l.withheld[a] {
			l.touched.servers[s] = key
		}
		return
	}
	if l.backends[a] == 0 || lb.Within(l.services, a) {
		return
	}
	// Only for an unknown service network: provisional addresses yield to backends.
	for _, s := range l.servers {
		if s.set != nil && s.set.Backends.HasAddr(a) {
			l.touched.servers[s] = key
		}
	}
}

// other returns the virtual server of that name. Without free numbers, beyond 100,000 service
// ports, it returns one that rejects, so that no client reaches a wrong backend. That assignment
// stays until its last reference is removed, so that references are uncounted where they were
// counted.
func (l *ledger) other(o other) *virtual {
	if s := l.others[o]; s != nil {
		return s
	}
	n := uint32(refusing)
	if o.set != (lb.SetID{}) && l.late[o] == 0 {
		n = l.numbers.next(l.mark.most())
	}
	if n == refusing {
		o = other{masq: o.masq}
		if s := l.others[o]; s != nil {
			return s
		}
	}
	return l.name(o, ipvs.ByMark(wireFamily(l.family), l.mark.of(n, o.masq)))
}

// name assigns a virtual server to a mark.
func (l *ledger) name(o other, id ipvs.ServiceID) *virtual {
	s := l.servers[id]
	if s == nil {
		s = &virtual{id: id}
		l.servers[id] = s
	}
	s.of, s.proto, s.want = &o, o.set.Proto, l.byMark(id, o.sticky)
	l.others[o] = s
	return s
}

// done forgets a virtual server that no frontend needs and that the kernel does not have.
func (l *ledger) done(key lb.Key, s *virtual) {
	if s.has || s.refs > 0 {
		return
	}
	s.drain = nil
	l.leave(key, s, false)
	delete(l.servers, s.id)
	delete(l.touched.servers, s)
	l.withhold(s, nil)
	if s.id.Mark == 0 {
		l.bind(key, s, unbound)
		return
	}
	if s.of != nil {
		delete(l.others, *s.of)
	}
	if n, _, ok := l.mark.number(s.id.Mark); ok {
		l.numbers.free(n)
	}
}

// place applies a change of this node: its addresses, those that answer NodePorts, those of other
// interfaces, and the networks of pods and cluster IPs.
func (l *ledger) place(p Place, n lb.Node) {
	nodePorts := slices.DeleteFunc(slices.Clone(p.Own), func(a netip.Addr) bool { return !lb.Within(n.NodePorts, a) })
	var differ []netip.Addr
	for _, a := range append(slices.Clone(l.nodePorts), nodePorts...) {
		if slices.Contains(l.nodePorts, a) != slices.Contains(nodePorts, a) {
			differ = append(differ, a)
		}
	}
	keys := func(yield func(lb.Key) bool) {
		if len(differ) > 0 {
			for port := range l.byPort {
				for _, a := range differ {
					if k := (lb.Key{Addr: a, Port: port.Port, Proto: port.Proto}); l.rows[k] == nil && !yield(k) {
						return
					}
				}
			}
		}
	}
	l.change(lb.Key{}, keys, func() { l.nodePorts, l.own = nodePorts, p.Own })
	before := map[netip.Addr]bool{}
	for a, is := range l.addrs {
		before[a] = l.binds(a, is)
	}
	if !slices.Equal(l.services, n.ServiceCIDRs) {
		for _, s := range l.servers {
			l.touched.servers[s] = lb.Key{}
		}
	}
	l.elsewhere = p.Elsewhere
	l.pods, l.services, l.apiServers = n.Pods.Prefixes, n.ServiceCIDRs, n.APIServers
	for a, is := range l.addrs {
		if l.binds(a, is) != before[a] {
			l.rebound(lb.Key{}, a, before[a])
		}
	}
}

// keeps reports whether flows to a real server outside of the set continue: the Service still has
// it, without new flows (DP-50).
func (l *ledger) keeps(s *virtual, a netip.AddrPort) bool {
	return s.refs > 0 && hasBackend(s.serving, a) && !l.withholds(a.Addr())
}

// wants reports whether the kernel must have the real server.
func (l *ledger) wants(s *virtual, a netip.AddrPort) bool {
	return s.refs > 0 && hasBackend(s.set, a) && !l.withholds(a.Addr())
}

func hasBackend(s *lb.BackendSet, a netip.AddrPort) bool {
	return s != nil && s.Backends.Has(a)
}

// drains reports whether real servers keep their connections when they leave: TCP ones do (DP-34).
// Scheduler dh sends all of a client's connections to one, and would refuse them while that one
// drains.
func (s *virtual) drains() bool {
	return (s.proto == lb.TCP || s.proto == 0) && (s.refs == 0 || s.want.Scheduler != "dh")
}

// draining schedules the removal of a virtual server's real servers that had connections.
type draining struct {
	left  time.Time // when its Service was removed, or zero
	next  time.Time // time of the next check
	pause time.Duration
	dests map[netip.AddrPort]seen
}

// seen is the observed state of a real server that drains.
type seen struct {
	left    time.Time // when its weight became 0
	in, out uint64    // packets
	noticed time.Time // when it last sent one, or when the checks began
	// Time of the first packet to it without a reply; zero if there is no such packet.
	asked time.Time
}

// numbers assigns the numbers of marks. It reuses a number as late as possible, because a member
// that the kernel refused to change may still use it.
type numbers struct {
	last uint32
	idle []uint32 // freed, the longest free first
	used map[uint32]bool
}

// refusing is the number of virtual servers that reject.
const refusing = 0

// next returns a free number, from 1 to most, or refusing.
func (n *numbers) next(most uint32) uint32 {
	for n.last < most || len(n.idle) > 0 {
		var number uint32
		if n.last < most {
			n.last++
			number = n.last
		} else {
			number, n.idle = n.idle[0], n.idle[1:]
		}
		if !n.used[number] {
			n.used[number] = true
			return number
		}
	}
	return refusing
}

// take reserves a number that was found in use.
func (n *numbers) take(number uint32) {
	if number != refusing {
		n.used[number] = true
	}
}

func (n *numbers) free(number uint32) {
	if n.used[number] {
		delete(n.used, number)
		n.idle = append(n.idle, number)
	}
}
