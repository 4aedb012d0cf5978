package nftables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// Dump reads the table from the kernel and describes what it does, without ids, slots and chain names that
// depend on how it came about: two tables that treat every packet alike have the same dump. What no packet
// can reach, or what is missing on a packet's way, is named as a fault.
func (p *Plane) Dump() (string, error) {
	snap, _, err := p.readTable(allSets)
	if err != nil {
		return "", err
	}
	if !snap.ours {
		return "no table of ours\n", nil
	}
	var kernel state
	kernel.adoptReserved(snap)
	rules := *p.rules
	rules.seed = kernel.seed
	d := dumper{p: p, rules: &rules, snap: snap, reachedBackends: map[string]bool{}, reachedMembers: map[string]bool{},
		lists: map[uint32][]netip.Prefix{}, reachedLists: map[uint32]bool{}}
	d.index()
	lines := append(d.rows(), d.addresses()...)
	slices.Sort(lines)
	lines = append(lines, d.faults...)
	return strings.Join(lines, "\n") + "\n", nil
}

type dumper struct {
	p      *Plane
	rules  *ruleset // ours, with the seed of the kernel's table
	snap   *snapshot
	faults []string

	numbers  map[setIndex]map[string]uint32 // maps from some key to a number
	backends map[string]netip.AddrPort      // by id and slot
	members  map[string]netip.AddrPort      // member-backends, by member and id

	reachedBackends map[string]bool
	reachedMembers  map[string]bool

	lists        map[uint32][]netip.Prefix // of source ranges
	reachedLists map[uint32]bool
}

func (d *dumper) fault(format string, args ...any) {
	d.faults = append(d.faults, "FAULT "+fmt.Sprintf(format, args...))
}

func (d *dumper) index() {
	d.numbers = map[setIndex]map[string]uint32{}
	for _, i := range []setIndex{sServices, sNodePorts, sClusterSets, sLocalSets, sNodePortClusterSets, sNodePortLocalSets, sMembers, sSetShapes, sSourceLists} {
		d.numbers[i] = map[string]uint32{}
		d.each(i, func(rec []byte) { d.numbers[i][string(rec[:len(rec)-4])] = order.Uint32(rec[len(rec)-4:]) })
	}
	d.backends = map[string]netip.AddrPort{}
	d.each(sBackends, func(rec []byte) { d.backends[string(rec[:8])] = parseBackend(rec[8:], d.p.addrLen) })
	d.each(sSourceRanges, func(rec []byte) {
		n := order.Uint32(rec)
		d.lists[n>>lengthBits] = append(d.lists[n>>lengthBits], netip.PrefixFrom(parseAddr(rec[4:], d.p.addrLen), int(n&(1<<lengthBits-1))))
	})
	for number, ranges := range d.lists {
		slices.SortFunc(ranges, netip.Prefix.Compare)
		d.lists[number] = slices.Compact(ranges) // the kernel may show an element twice while it resizes a hash table
	}
	d.members = map[string]netip.AddrPort{}
	d.each(sMemberBackends, func(rec []byte) { d.members[string(rec[:8])] = parseBackend(rec[8:], d.p.addrLen) })
}

// sources describes a list of source ranges.
func (d *dumper) sources(k lb.Key, cl class, key string) string {
	list, has := d.numbers[sSourceLists][key]
	ranges := d.lists[list>>lengthBits]
	if has != (cl.eighths() != 0) || has && (eighths(ranges) != cl.eighths() || list&(1<<lengthBits-1) != 0) {
		d.fault("%s of class %s has list %#x of source ranges: %v", k, cl, list, ranges)
	}
	if !has {
		return ""
	}
	d.reachedLists[list>>lengthBits] = true
	return fmt.Sprintf(" sources=%v", ranges)
}

func (d *dumper) each(i setIndex, f func(rec []byte)) {
	for rec := range d.snap.records[i].All() {
		f(rec)
	}
}

// rows describes each frontend with what its class asks for and the backends of its sets.
func (d *dumper) rows() []string {
	var lines []string
	used := map[uint32]bool{}
	for _, i := range []setIndex{sServices, sNodePorts} {
		n, cluster, local := d.p.addrLen, sClusterSets, sLocalSets
		if i == sNodePorts {
			n, cluster, local = 0, sNodePortClusterSets, sNodePortLocalSets
		}
		for key, number := range d.numbers[i] {
			k, cl := parseKey([]byte(key), n), class(number)
			d.checkClass(k, cl)
			line := fmt.Sprintf("%s %s", k, cl)
			if n > 0 {
				line += d.sources(k, cl, key)
			}
			for _, m := range []struct {
				set   setIndex
				scope lb.Scope
			}{{cluster, lb.Cluster}, {local, lb.Local}} {
				id, ok := d.numbers[m.set][key]
				if needs := cl.needs(m.scope); ok != needs {
					d.fault("%s of class %s: has a %s set: %t", k, cl, m.scope, ok)
				}
				if ok {
					used[id] = true
					line += " " + d.set(k, id, m.scope)
				}
			}
			lines = append(lines, line)
		}
	}
	for key := range d.numbers[sSetShapes] {
		if id := order.Uint32([]byte(key)); !used[id] {
			d.fault("set %d is not used", id)
		}
	}
	for key, ap := range d.backends {
		if d.reachedBackends[key] {
			continue
		}
		d.fault("backend %s in slot %d of set %d cannot be chosen", ap, order.Uint32([]byte(key[4:])), order.Uint32([]byte(key)))
	}
	for m, ap := range d.members {
		if d.reachedMembers[m] {
			continue
		}
		d.fault("member %d, %s, of set %d cannot be chosen", order.Uint32([]byte(m)), ap, order.Uint32([]byte(m[4:])))
	}
	return lines
}

// needs reports whether frontends of the class have a set of that scope.
func (c class) needs(s lb.Scope) bool {
	for _, f := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
		switch c.at(f) {
		case actionCluster, actionClusterMasq:
			if s == lb.Cluster {
				return true
			}
		case actionLocal, actionLocalMasq:
			if s == lb.Local {
				return true
			}
		}
	}
	return false
}

// set describes a set, and notes which backends it can reach.
func (d *dumper) set(k lb.Key, id uint32, scope lb.Scope) string {
	number, ok := d.numbers[sSetShapes][string(appendNum(nil, id))]
	if !ok {
		d.fault("%s: set %d has no shape", k, id)
		return fmt.Sprintf("%s=?", scope)
	}
	s := parseShape(scope, number)
	d.checkShape(k, s)
	var backends []string
	for slot := range s.size {
		key := string(appendNum(appendNum(nil, id), slot))
		ap, ok := d.backends[key]
		if s.seconds > 0 {
			var m uint32
			if m, ok = d.numbers[sMembers][key]; ok {
				mine := string(appendNum(appendNum(nil, m), id))
				ap, ok = d.members[mine]
				d.reachedMembers[mine] = true
			}
		} else {
			d.reachedBackends[key] = true
		}
		if !ok && slot >= wholeSize(s.size) {
			break // a balancer may be a little larger than the set; what comes behind cannot be chosen
		}
		if !ok {
			d.fault("%s: set %d has nothing in slot %d", k, id, slot)
			continue
		}
		backends = append(backends, ap.String())
	}
	slices.Sort(backends)
	text := fmt.Sprintf("%s=%s", scope, strings.Join(backends, ","))
	if s.seconds > 0 {
		text += fmt.Sprintf(" sticky=%d", s.seconds)
	}
	return text
}

func parseShape(scope lb.Scope, number uint32) shape {
	if number>>31 == 0 {
		return shape{scope: scope, size: number}
	}
	return shape{scope: scope, sticky: true, size: number & (1<<14 - 1), seconds: number >> 14 & (1<<17 - 1)}
}

func (d *dumper) checkClass(k lb.Key, cl class) {
	chains, filter, nat := d.rules.classChains(cl)
	d.checkVerdict(k, sFilterClasses, uint32(cl), filter)
	d.checkVerdict(k, sNATClasses, uint32(cl), nat)
	for _, ch := range chains {
		d.checkChain(k, ch)
	}
}

func (d *dumper) checkShape(k lb.Key, s shape) {
	for _, part := range s.parts() {
		d.checkChain(k, d.rules.balancer(part))
		v := d.snap.verdicts[shapesOf(part.scope)][string(appendNum(nil, part.number()))]
		if v != part.verdict() {
			d.fault("%s: shape %s leads to %q", k, part.chain(), v)
		}
	}
}

func (d *dumper) checkVerdict(k lb.Key, i setIndex, number uint32, want elementVerdict) {
	if got, ok := d.snap.verdicts[i][string(appendNum(nil, number))]; !ok || got != want {
		d.fault("%s: class %s in %s leads to %v, not to %v", k, class(number), d.rules.sets[i].name, got, want)
	}
}

func (d *dumper) checkChain(k lb.Key, want chain) {
	if is := d.snap.chains[want.name]; is == nil || is.digest != digest(want.rules) {
		d.fault("%s: chain %s is not as it should be", k, want.name)
	}
}

// addresses describes the sets of addresses.
func (d *dumper) addresses() []string {
	n := d.p.addrLen
	var lines []string
	put := func(i setIndex, describe func(rec []byte) string) {
		name := d.rules.sets[i].name
		d.each(i, func(rec []byte) { lines = append(lines, name+" "+describe(rec)) })
	}
	addr := func(rec []byte) string { return parseAddr(rec, n).String() }
	put(sClusterIPs, addr)
	equal := 0
	d.each(sEqualBytes, func(rec []byte) {
		if equal++; rec[0] != rec[4] {
			d.fault("bytes %d and %d count as equal", rec[0], rec[4])
		}
	})
	if equal != 256 {
		d.fault("%d of 256 bytes equal themselves", equal)
	}
	for number, ranges := range d.lists {
		if !d.reachedLists[number] {
			d.fault("list %d of source ranges is not used: %v", number, ranges)
		}
	}
	node := d.rules.node // the chains are compared with it below
	lines = append(lines, fmt.Sprintf("node nodeports %v pods %v services %v", node.NodePorts, node.Pods, node.ServiceCIDRs))
	for _, ch := range d.rules.skeleton() {
		d.checkChain(lb.Key{}, ch)
	}
	for _, name := range d.snap.foreign {
		d.fault("foreign set %s", name)
	}
	known := map[string]bool{}
	for _, ch := range d.rules.skeleton() {
		known[ch.name] = true
	}
	for _, m := range d.snap.verdicts {
		for _, v := range m {
			known[v.chain] = true
		}
	}
	for number := range d.snap.verdicts[sFilterClasses] {
		known[class(order.Uint32([]byte(number))).sourcesChain()] = true
	}
	for _, name := range slices.Sorted(maps.Keys(d.snap.chains)) {
		if !known[name] {
			d.fault("foreign chain %s", name)
		}
	}
	return lines
}
