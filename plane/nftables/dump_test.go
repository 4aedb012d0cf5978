//go:build linux

package nftables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

// Dump reads the table from the kernel and describes what it does, without the ids, slots and chain
// names that depend on its history. Two tables that treat every packet alike have the same dump. It
// reports unreachable objects, and missing ones on a packet's way, as faults.
func (p *Plane) Dump() (string, error) {
	snap, _, err := p.readTable(context.Background(), allSets)
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
	d := dumper{rules: &rules, snap: snap, ranges: map[uint32][]netip.Prefix{}}
	d.index()
	lines := append(d.rows(), d.constants()...)
	slices.Sort(lines)
	d.checkStructure()
	d.checkUnused()
	slices.Sort(d.faults)
	return strings.Join(append(lines, d.faults...), "\n") + "\n", nil
}

type dumper struct {
	rules    *ruleset // ours, with the seed of the kernel's table
	snap     *snapshot
	elements [setCount]map[string]*dumpedElement // by key
	ranges   map[uint32][]netip.Prefix           // by list
	faults   []string
}

type dumpedElement struct {
	data []byte
	used bool
}

func (d *dumper) fault(format string, args ...any) {
	d.faults = append(d.faults, "FAULT "+fmt.Sprintf(format, args...))
}

func (d *dumper) index() {
	for i := range setCount {
		d.elements[i] = map[string]*dumpedElement{}
		n := d.rules.sets[i].KeyLen()
		for rec := range d.snap.records[i].All() {
			d.elements[i][string(rec[:n])] = &dumpedElement{data: rec[n:]}
		}
	}
	for key := range d.elements[sSourceRanges] {
		list, p := ranges.ParseKey([]byte(key))
		d.ranges[list] = append(d.ranges[list], p)
	}
}

// use returns the data of an element that some packet can reach.
func (d *dumper) use(i setIndex, key []byte) (data []byte, ok bool) {
	e := d.elements[i][string(key)]
	if e == nil {
		return nil, false
	}
	e.used = true
	return e.data, true
}

func (d *dumper) number(i setIndex, key []byte) (uint32, bool) {
	data, ok := d.use(i, key)
	if !ok {
		return 0, false
	}
	return netlink.Order.Uint32(data), true
}

// rows describes each frontend with the treatment of its class and the backends of its sets.
func (d *dumper) rows() []string {
	var lines []string
	for i, addrLen := range map[setIndex]int{sServices: d.rules.AddrLen, sNodePorts: 0} {
		for key := range d.elements[i] {
			number, _ := d.number(i, []byte(key))
			lines = append(lines, d.row(wire.ParseKey([]byte(key), addrLen), class(number)))
		}
	}
	return lines
}

func (d *dumper) row(k lb.Key, cl class) string {
	if _, ok := d.snap.verdicts[sFilterClasses][string(wire.AppendNumber(nil, uint32(cl)))]; !ok {
		d.fault("%s: class %s leads nowhere", k, cl)
	}
	key := wire.AppendKey(nil, k)
	line := fmt.Sprintf("%s %s%s", k, cl, d.sources(k, cl, key))
	_, cluster, local := mapsOf(k)
	for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
		sets := cluster
		if scope == lb.Local {
			sets = local
		}
		id, ok := d.number(sets, key)
		if ok != cl.needs(scope) {
			d.fault("%s of class %s: has a %s set: %t", k, cl, scope, ok)
		}
		if ok {
			line += " " + d.set(k, id, scope)
		}
	}
	return line
}

// sources describes a list of source ranges.
func (d *dumper) sources(k lb.Key, cl class, key []byte) string {
	list, has := d.number(sSourceLists, key)
	all := d.ranges[ranges.NumberOf(list)]
	slices.SortFunc(all, netip.Prefix.Compare)
	if has != (cl.eighths() != 0) || has && (eighths(all) != cl.eighths() || list != ranges.NumberOf(list)<<8) {
		d.fault("%s of class %s has list %#x of source ranges: %v", k, cl, list, all)
	}
	if !has {
		return ""
	}
	for _, p := range all {
		d.use(sSourceRanges, wire.AppendAddr(wire.AppendNumber(nil, list|uint32(p.Bits())), p.Addr()))
	}
	return fmt.Sprintf(" sources=%v", all)
}

// needs reports whether frontends of the class have a set of that scope.
func (c class) needs(s lb.Scope) bool {
	for _, f := range []lb.From{lb.Pods, lb.Host, lb.Anywhere} {
		if a := c.at(f); a.balances() && (a >= actionLocal) == (s == lb.Local) {
			return true
		}
	}
	return false
}

// set describes a set.
func (d *dumper) set(k lb.Key, id uint32, scope lb.Scope) string {
	number, ok := d.number(sSetShapes, wire.AppendNumber(nil, id))
	if !ok {
		d.fault("%s: set %d has no shape", k, id)
	}
	s := parseShape(scope, number)
	for _, part := range s.parts() {
		if _, ok := d.snap.verdicts[shapesOf(scope)][string(wire.AppendNumber(nil, part.number()))]; !ok {
			d.fault("%s: shape %s leads nowhere", k, part.chain())
		}
	}
	var backends []string
	for slot := range s.size {
		backend, ok := d.backend(s, id, slot)
		if !ok && slot >= wholeSize(s.size) {
			break // a balancer may be a little larger than the set; later slots cannot be chosen
		}
		if !ok {
			d.fault("%s: set %d has nothing in slot %d", k, id, slot)
			continue
		}
		backends = append(backends, wire.ParseAddrPort(backend, d.rules.AddrLen).String())
	}
	slices.Sort(backends)
	text := fmt.Sprintf("%s=%s", scope, strings.Join(backends, ","))
	if s.sticky {
		text += fmt.Sprintf(" sticky=%d", s.seconds)
	}
	return text
}

func (d *dumper) backend(s shape, id, slot uint32) ([]byte, bool) {
	key := wire.AppendNumber(wire.AppendNumber(nil, id), slot)
	if !s.sticky {
		return d.use(sBackends, key)
	}
	member, _ := d.number(sMembers, key)
	return d.use(sMemberBackends, wire.AppendNumber(wire.AppendNumber(nil, member), id))
}

// constants describes the objects that belong to no frontend.
func (d *dumper) constants() []string {
	node := d.rules.node // the chains are compared with the rules for it
	lines := []string{fmt.Sprintf("node nodeports %v pods %v services %v", node.NodePorts, node.Pods,
		node.ServiceCIDRs)}
	for a := range d.elements[sClusterIPs] {
		d.use(sClusterIPs, []byte(a))
		lines = append(lines, "cluster-ips "+wire.ParseAddr([]byte(a)).String())
	}
	for n := range 256 {
		if _, ok := d.use(sEqualBytes, wire.AppendOctet(wire.AppendOctet(nil, byte(n)), byte(n))); !ok {
			d.fault("byte %d does not equal itself", n)
		}
	}
	d.use(sReserved, wire.AppendNumber(nil, reservedIDs))
	d.use(sReserved, wire.AppendNumber(nil, reservedSeed))
	return lines
}

func (d *dumper) checkUnused() {
	for i, elements := range d.elements {
		def := &d.rules.sets[i]
		for key, e := range elements {
			if !e.used {
				d.fault("no packet can reach element %s of %s", recordText(def, append([]byte(key), e.data...)),
					def.Name)
			}
		}
	}
}

// checkStructure compares chains and verdict maps with those that the classes and shapes of the
// kernel require.
func (d *dumper) checkStructure() {
	st := newState(0)
	for key := range d.snap.verdicts[sFilterClasses] {
		st.classes[class(netlink.Order.Uint32([]byte(key)))] = true
	}
	for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
		for key := range d.snap.verdicts[shapesOf(scope)] {
			st.shapes[parseShape(scope, netlink.Order.Uint32([]byte(key)))] = true
		}
	}
	chains, verdicts := (&change{ruleset: d.rules, st: st}).structure()
	for i, want := range verdicts {
		if is := d.snap.verdicts[i]; want != nil && !maps.Equal(is, want) {
			d.fault("map %s leads to %v, not to %v", d.rules.sets[i].Name, is, want)
		}
	}
	foreign := maps.Clone(d.snap.Chains)
	for _, ch := range chains {
		if is := d.snap.Chains[ch.Name]; is.Digest != ch.Digest() {
			d.fault("chain %s is not as it should be", ch.Name)
		}
		delete(foreign, ch.Name)
	}
	for name := range foreign {
		d.fault("foreign chain %s", name)
	}
	for _, name := range d.snap.Foreign {
		d.fault("foreign set %s", name)
	}
}
