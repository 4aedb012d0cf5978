//go:build linux

package ipvs

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Reset reads the kernel's state, and writes the differences to the table. It takes over the
// objects of upstream's proxy or of an earlier run: the same virtual servers serve on.
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (res plane.ResetResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, fmt.Errorf("ipvs: reset: %w", err)
	}
	p.lose()
	p.unread, p.suspected = nil, false
	p.node = want.Node
	if err := p.ensure(ctx); err != nil {
		return res, fmt.Errorf("ipvs: reset: %w", err)
	}
	there, ours, err := p.whoseRules(ctx)
	if err != nil {
		return res, fmt.Errorf("ipvs: reset: %w", err)
	}
	l, err := p.readAll(ctx, want)
	if err != nil {
		return res, fmt.Errorf("ipvs: reset: %w", err)
	}
	res.Dropped = plane.Dropped(l.served(), want)
	p.l = l
	for s := range l.touched.servers { // objects known before their frontends drain with them
		s.drain = nil
	}
	w := p.writer()
	most := p.step
	if there && !ours {
		// They serve until ours replace them, but not the frontends that a Reset leaves for later.
		most = math.MaxInt
	}
	now, later := plane.Postpone(p, slices.Values(want.Sorted()), most, l.serves)
	res.Later = plane.Keys(later)
	for _, row := range now {
		w.set(row.Key, row)
	}
	p.notices.late(len(l.late))
	write := func(ctx context.Context) error { return p.cfg.Chains.Reset(ctx, want.Node) }
	if there {
		w.after = write
	} else {
		w.before = write
	}
	if err := w.write(ctx); err != nil {
		p.lose()
		return plane.ResetResult{}, fmt.Errorf("ipvs: reset: %w", err)
	}
	for _, key := range sortedKeys(w.cutFor) {
		if row := want.Get(key); row != nil && len(w.errs[key]) == 0 {
			res.Later = append(res.Later, key)
			p.staged[key] = row
		}
	}
	for _, key := range sortedKeys(w.errs) {
		if want.Get(key) != nil {
			res.Later = append(res.Later, key)
		} else {
			p.suspect()
		}
	}
	p.counters.keep(l)
	p.publish()
	return res, nil
}

// whoseRules reports whether chains with the mode's names exist, and whether they are this mode's.
// That decides when ours are written. Chains of mode iptables, or of upstream, serve until virtual
// servers can. Without chains, ours come first, because they block unauthorised clients and
// masquerade.
func (p *Plane) whoseRules(ctx context.Context) (there, ours bool, err error) {
	rules, err := p.cfg.Chains.Rules(ctx)
	ours = slices.ContainsFunc(rules, func(r xtables.ChainRule) bool {
		return strings.Contains(r.Rule, setMarksAnywhere.name(p.cfg.Family))
	})
	return len(rules) > 0, ours, err
}

// ensure creates missing sets and the device.
func (p *Plane) ensure(ctx context.Context) error {
	for s := range setCount {
		if _, err := p.cfg.Sets.Ensure(ctx, p.sets[s]); err != nil {
			return err
		}
	}
	return p.cfg.Device.Ensure(ctx)
}

// readAll returns a ledger without frontends and with all our objects in the kernel; all are
// touched.
func (p *Plane) readAll(ctx context.Context, want *lb.Table) (*ledger, error) {
	place, err := p.cfg.Device.Place(ctx)
	if err != nil {
		return nil, err
	}
	l := newLedger(p.cfg.layout())
	l.place(place, want.Node)
	if err := p.readSets(ctx, l); err != nil {
		return nil, err
	}
	if err := p.readAddresses(ctx, l); err != nil {
		return nil, err
	}
	foreign := foreigners{}
	if _, err := p.readServers(ctx, l, func(id ipvs.ServiceID) { foreign.saw(id, l, want) }); err != nil {
		return nil, err
	}
	p.notices.foreign(foreign)
	for s := range l.touched.servers {
		s.dests, err = p.destsOf(ctx, s.id)
		if err != nil {
			return nil, err
		}
	}
	l.adoptMarks(want)
	l.conflict(want)
	return l, nil
}

// readServers records which of our virtual servers the kernel has, and calls foreign for the
// others. The real servers of a new one are still unknown.
func (p *Plane) readServers(ctx context.Context, l *ledger, foreign func(ipvs.ServiceID)) (seen map[ipvs.ServiceID]bool,
	err error) {
	seen = map[ipvs.ServiceID]bool{}
	known := l.known()
	err = p.cfg.IPVS.Services(ctx, func(is ipvs.ServiceState) error {
		id := is.ServiceID
		if id.Family != wireFamily(p.cfg.Family) {
			return nil
		}
		s := l.servers[id]
		if s == nil && !p.owns(l, known, id) || s != nil && !s.has && p.excluded(id) {
			foreign(id)
			return nil
		}
		seen[id] = true
		// From an earlier run; or another program created it at one of our addresses, or with one
		// of our marks.
		if s == nil {
			s = l.found(id)
		}
		if !s.has {
			s.has, s.dests, s.found = true, map[netip.AddrPort]dest{}, trafficOf(is.Stats)
			l.touched.servers[s] = lb.Key{}
		}
		if s.is != is.Service {
			s.is = is.Service
			l.touched.servers[s] = lb.Key{}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the virtual servers: %w", err)
	}
	return seen, nil
}

// found adds a virtual server without a frontend.
func (l *ledger) found(id ipvs.ServiceID) *virtual {
	s := &virtual{id: id, proto: lb.Proto(id.Proto)}
	l.servers[id] = s
	if id.Mark == 0 {
		if l.addrs[id.Addr.Addr()].has {
			l.bind(lb.Key{}, s, provisional)
		}
	} else if n, _, ok := l.mark.number(id.Mark); ok {
		l.numbers.take(n)
	}
	return s
}

// known returns the virtual servers that the sets name as a kube-proxy's: at the keys of members,
// and of their marks.
func (l *ledger) known() map[ipvs.ServiceID]bool {
	known := map[ipvs.ServiceID]bool{probeID(l.family): true}
	for m, c := range l.members {
		switch {
		case !c.has:
		case m.set.marks():
			// No other set has the member of one that leaves, see ledger.leave.
			known[serviceOf(m.key())] = true
			if c.is.mask == wholeMark { // another masquerade bit, so its form is no proof
				known[ipvs.ByMark(wireFamily(l.family), c.is.value)] = true
			}
		case m.set.names() && m.set != setHealthCheck:
			for k := range lb.Expand(m.key(), l.own) {
				known[serviceOf(k)] = true
			}
		}
	}
	return known
}

// owns reports whether a virtual server is a kube-proxy's, see the package comment; known is the
// result of [ledger.known].
func (l *ledger) owns(known map[ipvs.ServiceID]bool, id ipvs.ServiceID) bool {
	if id.Mark != 0 {
		_, _, ok := l.mark.number(id.Mark)
		return ok || known[id]
	}
	a := id.Addr.Addr()
	return known[id] || l.addrs[a].has || l.members[member{set: setIPs, addr: a}].has
}

// owns reports the same of a virtual server to take over. It includes NodePorts at addresses that
// the node had, and excludes excluded networks.
func (p *Plane) owns(l *ledger, known map[ipvs.ServiceID]bool, id ipvs.ServiceID) bool {
	if known[id] || id.Mark != 0 {
		return l.owns(known, id)
	}
	return !p.excluded(id) && (l.owns(known, id) || !l.elsewhere[id.Addr.Addr()] && l.isNodePort(id.Addr.Port(),
		lb.Proto(id.Proto)))
}

// isNodePort reports whether the sets of NodePorts have the port.
func (l *ledger) isNodePort(port uint16, proto lb.Proto) bool {
	for _, s := range []set{setNodePortTCP, setNodePortLocalTCP, setNodePortUDP, setNodePortLocalUDP} {
		if m := (member{set: s, port: port}); m.key().Proto == proto && l.members[m].has {
			return true
		}
	}
	return false
}

// readSets reads the members of all sets.
func (p *Plane) readSets(ctx context.Context, l *ledger) error {
	l.round++
	for s := range setCount {
		if p.broken[s] {
			continue
		}
		is, err := p.cfg.Sets.Members(ctx, p.sets[s].Name, func(w ipset.Member) {
			m, as := memberOf(s, w)
			c := l.members[m]
			if !c.has || c.is != as {
				l.touched.members[m] = lb.Key{}
			}
			c.has, c.is, c.round = true, as, l.round
			l.members[m] = c
		})
		if err != nil {
			return err
		}
		if other := is.Differs(p.sets[s]); other != "" {
			return fmt.Errorf("ipset %s has %s: another program has replaced it: %w", p.sets[s].Name, other,
				plane.ErrStateLost)
		}
	}
	for m, c := range l.members {
		if c.has && c.round != l.round && !p.broken[m.set] {
			c.has = false
			l.put(m, c)
			l.touched.members[m] = lb.Key{}
		}
	}
	return nil
}

// readAddresses records the addresses of kube-ipvs0.
func (p *Plane) readAddresses(ctx context.Context, l *ledger) error {
	var all []netip.Addr
	if !p.deviceless {
		var err error
		all, err = p.cfg.Device.Addresses(ctx)
		if err != nil {
			return err
		}
	}
	has := make(map[netip.Addr]bool, len(all))
	for _, a := range all {
		if is := l.addrs[a]; !is.has {
			if is.refs == 0 && lb.Within(p.cfg.ExcludeCIDRs, a) && !l.members[member{set: setIPs, addr: a}].has {
				continue // a foreign address
			}
			is.has = true
			l.addrs[a] = is
			l.touched.addrs[a] = lb.Key{}
		}
		has[a] = true
	}
	for a, is := range l.addrs {
		if is.has && !has[a] {
			is.has = false
			setOrDelete(l.addrs, a, is)
			l.touched.addrs[a] = lb.Key{}
		}
	}
	return nil
}

// adoptMarks keeps the meaning of marks that members of sets have. A mark loses its meaning if the
// frontend of one of its members now needs something else, or is gone: that member still exists
// when the mark's virtual server gets its real servers (SV-25).
func (l *ledger) adoptMarks(want *lb.Table) {
	type claim struct {
		mark uint32
		of   other
	}
	led, claims := map[uint32]int{}, map[claim]int{}
	for m, c := range l.members {
		if m.set.marks() && c.has && c.is.mask == wholeMark {
			led[c.is.value]++
			if n, _, ok := l.mark.number(c.is.value); ok {
				l.numbers.take(n)
			}
		}
	}
	var sorted []claim
	for _, row := range want.Sorted() {
		open := *row
		open.Sources = nil // which need no marks, and may be many
		for k := range lb.Expand(row.Key, l.nodePorts) {
			if !k.Addr.IsValid() || row.Accepts() {
				continue
			}
			for _, m := range l.front(k, &open).marks {
				if m.other == nil {
					continue
				}
				is := l.members[m.member]
				n, masq, ok := l.mark.number(is.is.value)
				if !is.has || is.is.mask != wholeMark || !ok || masq != m.other.masq ||
					(n == refusing) != (m.other.set == lb.SetID{}) {
					continue
				}
				c := claim{is.is.value, *m.other}
				claims[c]++
				if claims[c] == 1 {
					sorted = append(sorted, c)
				}
			}
		}
	}
	for _, c := range sorted {
		if l.others[c.of] == nil && claims[c] == led[c.mark] {
			l.name(c.of, ipvs.ByMark(wireFamily(l.family), c.mark))
		}
	}
}

// served yields the keys that sets and virtual servers serve.
func (l *ledger) served() iter.Seq[lb.Key] {
	return func(yield func(lb.Key) bool) {
		for m, c := range l.members {
			if c.has && m.set.names() && !yield(m.key()) {
				return
			}
		}
		for id, s := range l.servers {
			if k := keyOf(id); s.has && id.Mark == 0 && id != probeID(l.family) {
				_, answers := slices.BinarySearchFunc(l.nodePorts, k.Addr, netip.Addr.Compare)
				if !answers && !yield(k) {
					return
				}
			}
		}
	}
}

// serves reports whether the kernel has a virtual server for the frontend, or needs none.
func (l *ledger) serves(row *lb.Frontend) bool {
	if row.Accepts() {
		return true
	}
	for k := range lb.Expand(row.Key, l.nodePorts) {
		if s := l.servers[serviceOf(k)]; s == nil || !s.has {
			return false
		}
	}
	return true
}

// foreigners are foreign virtual servers, for a notice.
type foreigners struct {
	ours []ipvs.ServiceID // at keys of the table
	n    int
}

func (f *foreigners) saw(id ipvs.ServiceID, l *ledger, want *lb.Table) {
	f.n++
	if id.Mark == 0 && want.Get(keyOf(id)) != nil {
		f.ours = append(f.ours, id)
		slices.SortFunc(f.ours, compareIDs)
	}
}
