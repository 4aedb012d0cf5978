//go:build linux

package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/nftwalk"
	"kube-proxy/internal/nftwire"
	"kube-proxy/internal/nlconn"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ranges"
	"kube-proxy/trace"
)

// Differences is part of mode.Looker. It asks the kernel for the elements of some rows at a time, so that it needs a few bytes for each
// backend set and none for the elements; then it lists the maps for what no row wants. Ids, slots and members are taken as the kernel has
// them: what counts is where they lead.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	sock, err := openSocket()
	if err == nil {
		defer sock.Close()
		err = p.look.differences(ctx, sock, want, each)
	}
	if err != nil {
		return fmt.Errorf("nftables %s: compare the kernel with the table: %w", p.look.fam, err)
	}
	return nil
}

func (l *looker) differences(ctx context.Context, sock *socket, want *lb.Table, each func(trace.Difference) bool) error {
	d := &differ{reader: newReader(l.family, sock, l.sets), Teller: mode.NewTeller(ctx, each), ctx: ctx, want: want, rules: l.ruleset(), owners: map[uint32]*setClaim{}, lists: map[uint32]*lb.Frontend{}}
	d.rules.node = want.Node
	return d.Done(d.all())
}

type differ struct {
	reader
	*mode.Teller
	ctx  context.Context
	want *lb.Table

	rules *ruleset // for the node of the table and the seed of the kernel
	there [setCount]bool

	// What the rows need: chains, and the addresses of cluster IPs, sorted.
	needs      *state
	clusterIPs []netip.Addr

	// owners are the ids whose elements are those of a set that the table has, suspects those whose elements are not.
	owners   map[uint32]*setClaim
	suspects []*setClaim
	members  []uint32
	// lists are the same for lists of source ranges: by number, a row that has the ranges; and rows whose list has others.
	lists     map[uint32]*lb.Frontend
	strangers []*lb.Frontend
}

// setClaim is a row that leads to a backend set.
type setClaim struct {
	key  lb.Key
	in   setIndex // the map in which it does
	id   uint32
	set  *lb.BackendSet
	time uint32 // of affinity, in seconds
	told bool   // its elements are not as they should be
}

func (s *setClaim) shape() shape {
	return shape{s.set.ID.Scope, roundSize(uint32(len(s.set.Backends))), s.time > 0, s.time}
}

// tellElement reports that an element has other data; nil for no element.
func (d *differ) tellElement(k lb.Key, i setIndex, key, want, have []byte) error {
	def := &d.sets[i]
	return d.Tell(k, def.ElementText(key), def.DataText(want), def.DataText(have))
}

func (d *differ) object(i setIndex, key []byte) string { return d.sets[i].ElementText(key) }

func (d *differ) all() error {
	present, dormant, err := d.State(d.ctx)
	switch name := d.Title(); {
	case err != nil:
		return err
	case !present:
		return d.Tell(lb.Key{}, name, nftwire.IsThere, "")
	case dormant:
		if err := d.Tell(lb.Key{}, name, "in force", "dormant: none of its chains is in force"); err != nil {
			return err
		}
	}
	for _, part := range []func() error{d.compareSets, d.compareReserved, d.readTableOnce, d.compareStructure, d.compareBytes, d.compareRows, d.compareSuspects, d.findOthers} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// compareSets looks for sets that are not there, or not as we make them, whose elements are left out then.
func (d *differ) compareSets() error {
	var others []string
	err := nftwire.Undisturbed(d.ctx, func() error {
		d.there, others = [setCount]bool{}, nil
		return d.eachSet(d.ctx, func(i setIndex) { d.there[i] = true }, func(name string) { others = append(others, name) })
	})
	for i := range setCount {
		if err == nil && !d.there[i] {
			have := ""
			if at := slices.Index(others, d.sets[i].Name); at >= 0 {
				have, others = "of other types", slices.Delete(others, at, at+1)
			}
			err = d.Tell(lb.Key{}, d.sets[i].String(), nftwire.IsThere, have)
		}
	}
	for _, name := range others {
		if err == nil {
			err = d.Tell(lb.Key{}, "set "+name, "", nftwire.IsThere)
		}
	}
	return err
}

// compareReserved looks whether the table says which numbers were used, and finds the seed by which clients are hashed.
func (d *differ) compareReserved() error {
	var keys [][]byte
	for n := uint32(1); n < reservedEnd; n++ {
		keys = append(keys, appendNum(nil, n))
	}
	have, err := d.get(sReserved, keys)
	if err != nil || !d.there[sReserved] {
		return err
	}
	for _, k := range keys {
		data, ok := have[string(k)]
		switch {
		case !ok:
			err = d.Tell(lb.Key{}, d.object(sReserved, k), "a number", "")
		case nlconn.Order.Uint32(k) == reservedSeed:
			d.rules.seed = nlconn.Order.Uint32(data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readTableOnce finds which chains the rows need, and which addresses are cluster IPs. It asks for nothing.
func (d *differ) readTableOnce() error {
	d.needs = newState(0)
	for f := range d.want.All() {
		if f.Accepts() {
			continue
		}
		d.needs.classes[classOf(f)] = true
		for _, c := range d.claims(f) {
			for _, part := range c.shape().parts() {
				d.needs.shapes[part] = true
			}
		}
		if isClusterIP(f) {
			d.clusterIPs = append(d.clusterIPs, f.Key.Addr)
		}
	}
	slices.SortFunc(d.clusterIPs, netip.Addr.Compare)
	d.clusterIPs = slices.Compact(d.clusterIPs)
	return nil
}

// claims are the sets that a row leads to.
func (d *differ) claims(f *lb.Frontend) (all []setClaim) {
	_, cluster, local := mapsOf(f.Key)
	for scope, in := range map[lb.Scope]setIndex{lb.Cluster: cluster, lb.Local: local} {
		if s := f.Set(scope); s != nil {
			time := roundSeconds(seconds(f.Affinity))
			if time > 0 {
				s = stickable(s, d.rules.seed)
			}
			all = append(all, setClaim{key: f.Key, in: in, set: s, time: time})
		}
	}
	return all
}

// compareStructure compares chains with their rules, and the maps that lead to them. Chains of classes and shapes that no row has any more
// may stay, see needClass.
func (d *differ) compareStructure() error {
	hooks, rules := map[string]nftwire.Hook{}, map[string][]nftwalk.Rule{}
	verdicts := [setCount]map[string]elementVerdict{}
	err := nftwire.Undisturbed(d.ctx, func() error {
		clear(hooks)
		return d.EachChain(d.ctx, func(name string, h nftwire.Hook) { hooks[name] = h })
	})
	if err == nil {
		err = nftwire.Undisturbed(d.ctx, func() error {
			clear(rules)
			return d.EachRule(d.ctx, func(chain string, body []byte) { rules[chain] = append(rules[chain], nftwalk.RuleOf(body)) })
		})
	}
	for i := range setCount {
		if err == nil && d.sets[i].Verdict && d.there[i] {
			err = nftwire.Undisturbed(d.ctx, func() error {
				verdicts[i] = map[string]elementVerdict{}
				return d.EachElement(d.ctx, d.sets[i].Name, func(el []byte) {
					verdicts[i][string(nftwire.ElementKey(el))] = elementVerdict{nftwire.VerdictOf(nlconn.Attribute(el, unix.NFTA_SET_ELEM_DATA))}
				})
			})
		}
	}
	if err != nil {
		return err
	}
	needed, _ := (&change{batch: d.rules.newBatch(TableName), st: d.needs}).structure()
	may := newState(0)
	maps.Copy(may.classes, d.needs.classes)
	maps.Copy(may.shapes, d.needs.shapes)
	for _, i := range []setIndex{sFilterClasses, sNATClasses} {
		for key := range verdicts[i] {
			if c := class(nlconn.Order.Uint32([]byte(key))); c.valid() {
				may.classes[c] = true
			}
		}
	}
	for _, scope := range []lb.Scope{lb.Cluster, lb.Local} {
		for key := range verdicts[shapesOf(scope)] {
			if s := parseShape(scope, nlconn.Order.Uint32([]byte(key))); s.valid() {
				may.shapes[s] = true
			}
		}
	}
	chains, want := (&change{batch: d.rules.newBatch(TableName), st: may}).structure()
	for _, c := range chains {
		must := slices.ContainsFunc(needed, func(n chain) bool { return n.name == c.name })
		h, there := hooks[c.name]
		delete(hooks, c.name)
		if !there && !must {
			continue
		}
		tell := func(object, want, have string) error { return d.Tell(lb.Key{}, object, want, have) }
		if err := c.wanted().Compare(there, h, rules[c.name], tell); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(hooks)) {
		if err := d.Tell(lb.Key{}, "chain "+name, "", hooks[name].State()); err != nil {
			return err
		}
	}
	_, must := (&change{batch: d.rules.newBatch(TableName), st: d.needs}).structure()
	for i := range setCount {
		if !d.sets[i].Verdict || !d.there[i] {
			continue
		}
		if err := d.compareVerdicts(i, verdicts[i], want[i], must[i]); err != nil {
			return err
		}
	}
	return nil
}

// compareVerdicts compares a map of verdicts with what it may have and what it must.
func (d *differ) compareVerdicts(i setIndex, have, may, must map[string]elementVerdict) error {
	for _, key := range slices.Sorted(maps.Keys(have)) {
		want, ok := may[key]
		if ok && want == have[key] {
			continue
		}
		text := ""
		if ok {
			text = want.String()
		}
		if err := d.Tell(lb.Key{}, d.object(i, []byte(key)), text, have[key].String()); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(must)) {
		if _, ok := have[key]; ok {
			continue
		}
		if err := d.Tell(lb.Key{}, d.object(i, []byte(key)), must[key].String(), ""); err != nil {
			return err
		}
	}
	return nil
}

// compareBytes looks at the set by which rules compare addresses.
func (d *differ) compareBytes() error {
	if !d.there[sEqualBytes] {
		return nil
	}
	var keys [][]byte
	for n := range 256 {
		keys = append(keys, appendOctet(appendOctet(nil, byte(n)), byte(n)))
	}
	have, err := d.get(sEqualBytes, keys)
	for _, k := range keys {
		if _, ok := have[string(k)]; !ok && err == nil {
			err = d.tellElement(lb.Key{}, sEqualBytes, k, k, nil)
		}
	}
	return err
}

// get returns the data of the elements of those keys that are there; none of a set that is not as we make it.
func (d *differ) get(i setIndex, keys [][]byte) (map[string][]byte, error) {
	if !d.there[i] {
		return nil, nil
	}
	return d.Get(d.ctx, &d.sets[i], keys)
}

// atOnce is how much, as lb.Weight counts, is compared at once.
const atOnce = 2000

// compareRows compares what the rows need.
func (d *differ) compareRows() error {
	var some []*lb.Frontend
	weight := 0
	for f := range d.want.All() {
		if f.Accepts() {
			continue
		}
		some = append(some, f)
		for _, r := range f.Routes {
			if r.To != nil {
				weight += len(r.To.Backends)
			}
		}
		if weight += 1 + len(f.Sources); weight < atOnce {
			continue
		}
		if err := d.compareSome(some); err != nil {
			return err
		}
		some, weight = some[:0], 0
	}
	return d.compareSome(some)
}

func (d *differ) compareSome(rows []*lb.Frontend) error {
	var keys [setCount][][]byte
	for _, f := range rows {
		k := appendKey(nil, f.Key)
		classes, _, _ := mapsOf(f.Key)
		keys[classes] = append(keys[classes], k)
		for _, c := range d.claims(f) {
			keys[c.in] = append(keys[c.in], k)
		}
		if len(f.Sources) > 0 {
			keys[sSourceLists] = append(keys[sSourceLists], k)
		}
		if isClusterIP(f) {
			keys[sClusterIPs] = append(keys[sClusterIPs], appendAddr(nil, f.Key.Addr))
		}
	}
	var have [setCount]map[string][]byte
	for i := range setCount {
		var err error
		if have[i], err = d.get(i, keys[i]); err != nil {
			return err
		}
	}
	var sets []*setClaim
	for _, f := range rows {
		k := appendKey(nil, f.Key)
		classes, _, _ := mapsOf(f.Key)
		want := appendNum(nil, uint32(classOf(f)))
		if is := have[classes][string(k)]; d.there[classes] && !bytes.Equal(is, want) {
			if err := d.tellElement(f.Key, classes, k, want, is); err != nil {
				return err
			}
		}
		for _, c := range d.claims(f) {
			data, ok := have[c.in][string(k)]
			if !ok && d.there[c.in] {
				if err := d.Tell(f.Key, d.object(c.in, k), "the id of set "+c.set.ID.String(), ""); err != nil {
					return err
				}
			}
			if ok {
				c.id = nlconn.Order.Uint32(data)
				sets = append(sets, &c)
			}
		}
		if isClusterIP(f) && d.there[sClusterIPs] {
			a := appendAddr(nil, f.Key.Addr)
			if _, ok := have[sClusterIPs][string(a)]; !ok {
				if err := d.tellElement(f.Key, sClusterIPs, a, a, nil); err != nil {
					return err
				}
			}
		}
		if err := d.compareSources(f, k, have[sSourceLists][string(k)]); err != nil {
			return err
		}
	}
	return d.compareSetsOf(sets)
}

// compareSources compares the source ranges of a row, whose element of source-lists is list.
func (d *differ) compareSources(f *lb.Frontend, k, list []byte) error {
	switch {
	case len(f.Sources) == 0 || !d.there[sSourceLists]:
		return nil
	case list == nil:
		return d.Tell(f.Key, d.object(sSourceLists, k), "the number of its list", "")
	}
	n := nlconn.Order.Uint32(list)
	if o := d.lists[n>>lengthBits]; o != nil && slices.Equal(o.Sources, f.Sources) && n == n>>lengthBits<<lengthBits {
		return nil
	}
	lacking, err := d.lacking(f, n)
	if err == nil && len(lacking) == 0 && d.lists[n>>lengthBits] == nil {
		d.lists[n>>lengthBits] = f
		return nil
	}
	d.strangers = append(d.strangers, f)
	return err
}

// lacking returns the ranges of a row that are not in the list of that number.
func (d *differ) lacking(f *lb.Frontend, n uint32) (keys [][]byte, err error) {
	if !d.there[sSourceRanges] {
		return nil, nil
	}
	for _, p := range ranges.Of(f.Sources) {
		keys = append(keys, appendAddr(appendNum(nil, n|uint32(p.Bits())), p.Addr()))
	}
	have, err := d.get(sSourceRanges, keys)
	return slices.DeleteFunc(keys, func(k []byte) bool { _, ok := have[string(k)]; return ok }), err
}

// compareList tells of a row whose list has not its ranges, or is another's.
func (d *differ) compareList(f *lb.Frontend) error {
	k := appendKey(nil, f.Key)
	have, err := d.get(sSourceLists, [][]byte{k})
	if err != nil || have[string(k)] == nil {
		return err
	}
	n := nlconn.Order.Uint32(have[string(k)])
	o := d.lists[n>>lengthBits]
	text := d.sets[sSourceLists].DataText(have[string(k)])
	lacking, err := d.lacking(f, n)
	switch {
	case err != nil:
		return err
	case n != n>>lengthBits<<lengthBits, n == 0:
		return d.Tell(f.Key, d.object(sSourceLists, k), "the number of its list", text+", that of no list")
	case o == nil:
		d.lists[n>>lengthBits] = f
	case slices.Equal(o.Sources, f.Sources):
		return nil
	default:
		return d.Tell(f.Key, d.object(sSourceLists, k), "the number of its list", fmt.Sprintf("%s, the list of %s", text, o.Key))
	}
	for _, k := range lacking {
		if err := d.tellElement(f.Key, sSourceRanges, k, k, nil); err != nil {
			return err
		}
	}
	return nil
}

// compareSetsOf looks whether ids lead to the backends that they shall lead to. Of those that do not, either the row has another's id, or the set's
// elements are not as they should be: which, is clear when all rows are known.
func (d *differ) compareSetsOf(claims []*setClaim) error {
	claims = slices.DeleteFunc(claims, func(c *setClaim) bool {
		o := d.owners[c.id]
		return o != nil && o.set.ID == c.set.ID && o.time == c.time
	})
	slices.SortFunc(claims, func(a, b *setClaim) int { return a.set.ID.Compare(b.set.ID) })
	claims = slices.CompactFunc(claims, func(a, b *setClaim) bool { return a.id == b.id && a.set == b.set && a.time == b.time })
	have, err := d.readSetsOf(claims)
	if err != nil {
		return err
	}
	for _, c := range claims {
		same := true
		_ = d.compareSet(c, have, func(setIndex, []byte, string, string) error { same = false; return errDiffers })
		if !same {
			d.suspects = append(d.suspects, c)
			continue
		}
		d.owners[c.id] = c
		if c.time > 0 {
			for slot := range len(c.set.Backends) {
				d.members = append(d.members, nlconn.Order.Uint32(have[sMembers][string(appendNum(appendNum(nil, c.id), uint32(slot)))]))
			}
		}
	}
	return nil
}

// errDiffers ends a comparison of which it matters only whether something differs.
var errDiffers = errors.New("it differs")

// readSetsOf reads the elements of sets: all that a balancer may draw.
func (d *differ) readSetsOf(claims []*setClaim) (have [setCount]map[string][]byte, err error) {
	var keys [setCount][][]byte
	for _, c := range claims {
		keys[sSetShapes] = append(keys[sSetShapes], appendNum(nil, c.id))
		for slot := range c.shape().size {
			in := sBackends
			if c.time > 0 {
				in = sMembers
			}
			keys[in] = append(keys[in], appendNum(appendNum(nil, c.id), slot))
		}
	}
	for _, i := range []setIndex{sSetShapes, sBackends, sMembers} {
		if have[i], err = d.get(i, keys[i]); err != nil {
			return have, err
		}
	}
	for key, member := range have[sMembers] {
		keys[sMemberBackends] = append(keys[sMemberBackends], append(bytes.Clone(member), key[:4]...))
	}
	have[sMemberBackends], err = d.get(sMemberBackends, keys[sMemberBackends])
	return have, err
}

// compareSet compares the elements of a set with what was read, and calls f for those that differ until it fails.
func (d *differ) compareSet(c *setClaim, have [setCount]map[string][]byte, f func(i setIndex, key []byte, want, have string) error) error {
	id, want := appendNum(nil, c.id), appendNum(nil, c.shape().number())
	if is := have[sSetShapes][string(id)]; d.there[sSetShapes] && !bytes.Equal(is, want) {
		if err := f(sSetShapes, id, d.sets[sSetShapes].DataText(want), d.sets[sSetShapes].DataText(is)); err != nil {
			return err
		}
	}
	lacking := make(map[netip.AddrPort]bool, len(c.set.Backends))
	for _, b := range c.set.Backends {
		lacking[b.Addr] = true
	}
	type place struct {
		in   setIndex
		key  []byte
		have string
	}
	var wrong []place // slots, in their order, that have no backend of the set
	var beyond []place
	for slot := range c.shape().size {
		p := place{in: sBackends, key: appendNum(appendNum(nil, c.id), slot)}
		if c.time > 0 {
			p.in = sMembers
		}
		data, ok := have[p.in][string(p.key)]
		if ok && c.time > 0 {
			p.in, p.key = sMemberBackends, append(bytes.Clone(data), id...)
			data, ok = have[p.in][string(p.key)]
		}
		var is netip.AddrPort
		if ok {
			is = parseBackend(data, d.addrLen)
			p.have = is.String()
		}
		switch {
		case int(slot) >= len(c.set.Backends):
			if ok || p.in == sMemberBackends {
				beyond = append(beyond, p)
			}
		case ok && lacking[is]:
			delete(lacking, is)
		case d.there[p.in]:
			wrong = append(wrong, p)
		}
	}
	left := slices.SortedFunc(maps.Keys(lacking), netip.AddrPort.Compare)
	for i, p := range wrong {
		want := ""
		if i < len(left) {
			want = left[i].String()
		}
		if err := f(p.in, p.key, want, p.have); err != nil {
			return err
		}
	}
	for _, p := range beyond {
		if err := f(p.in, p.key, "", p.have); err != nil {
			return err
		}
	}
	return nil
}

// compareSuspects tells of rows whose ids do not lead where they shall.
func (d *differ) compareSuspects() error {
	for _, c := range d.suspects {
		have, err := d.readSetsOf([]*setClaim{c})
		if err != nil {
			return err
		}
		object := d.object(c.in, appendKey(nil, c.key))
		text := d.sets[c.in].DataText(appendNum(nil, c.id))
		owner := d.owners[c.id]
		switch {
		case owner != nil && owner.set.ID == c.set.ID && owner.time == c.time: // another row of the set has told, or it is right by now
		case owner != nil:
			err = d.Tell(c.key, object, "the id of set "+c.set.ID.String(), fmt.Sprintf("%s, that of set %s", text, owner.set.ID))
		case len(have[sSetShapes])+len(have[sBackends])+len(have[sMembers]) == 0 && d.there[sSetShapes] && d.there[sBackends] && d.there[sMembers]:
			err = d.Tell(c.key, object, "the id of set "+c.set.ID.String(), text+", that of no set")
		default:
			err = d.compareSet(c, have, func(i setIndex, key []byte, want, have string) error {
				return d.Tell(c.key, d.object(i, key), want, have)
			})
			d.owners[c.id], c.told = c, true
		}
		if err != nil {
			return err
		}
	}
	for _, f := range d.strangers {
		if err := d.compareList(f); err != nil {
			return err
		}
	}
	return nil
}

// findOthers lists the maps for elements that no row wants. Of a map that would take long to list (see bigMap), the packets reach no more than
// compareRows has looked at.
func (d *differ) findOthers() error {
	slices.Sort(d.members)
	backends := 0
	for _, c := range d.owners {
		backends += len(c.set.Backends)
	}
	for i := range setCount {
		def := &d.sets[i]
		if def.Verdict || def.Dynamic() || !d.there[i] || backends > bigMap && (i == sBackends || i == sMembers || i == sMemberBackends) {
			continue
		}
		var enough error
		var rec []byte
		err := d.EachElement(d.ctx, d.sets[i].Name, func(el []byte) {
			rec = def.Record(rec[:0], el)
			key := rec[:def.KeyLen()]
			if k, wanted := d.wants(i, key); !wanted && enough == nil {
				enough = d.tellElement(k, i, key, nil, rec[def.KeyLen():])
			}
		})
		if enough != nil {
			return enough
		}
		if err != nil && !errors.Is(err, nlconn.ErrInterrupted) { // of what others change meanwhile, nothing here is told twice
			return fmt.Errorf("elements of %s: %w", def.Name, err)
		}
	}
	return nil
}

// wants reports whether an element of that key may be there, and which row it is about.
func (d *differ) wants(i setIndex, key []byte) (k lb.Key, wanted bool) {
	row := func(addrLen int) *lb.Frontend {
		k = parseKey(key, addrLen)
		if f := d.want.Get(k); f != nil && !f.Accepts() {
			return f
		}
		return nil
	}
	switch i {
	case sServices:
		return k, row(d.addrLen) != nil
	case sNodePorts:
		return k, row(0) != nil
	case sClusterSets, sLocalSets, sNodePortClusterSets, sNodePortLocalSets:
		n, scope := d.addrLen, lb.Cluster
		if i == sNodePortClusterSets || i == sNodePortLocalSets {
			n = 0
		}
		if i == sLocalSets || i == sNodePortLocalSets {
			scope = lb.Local
		}
		f := row(n)
		return k, f != nil && f.Set(scope) != nil
	case sSourceLists:
		f := row(d.addrLen)
		return k, f != nil && len(f.Sources) > 0
	case sSourceRanges:
		f := d.lists[nlconn.Order.Uint32(key)>>lengthBits]
		return keyOf(f), f != nil && (&sourceList{ranges: ranges.Of(f.Sources)}).has(key)
	case sClusterIPs:
		_, ok := slices.BinarySearchFunc(d.clusterIPs, parseAddr(key, d.addrLen), netip.Addr.Compare)
		return k, ok
	case sEqualBytes:
		return k, bytes.Equal(key[:4], key[4:]) && bytes.Equal(key[1:4], make([]byte, 3))
	case sReserved:
		n := nlconn.Order.Uint32(key)
		return k, n > 0 && n < reservedEnd
	case sMemberBackends:
		c := d.owners[nlconn.Order.Uint32(key[4:])]
		_, ok := slices.BinarySearch(d.members, nlconn.Order.Uint32(key))
		return c.rowKey(), c != nil && (ok || c.told)
	}
	c := d.owners[nlconn.Order.Uint32(key)]
	if c == nil || i == sSetShapes {
		return c.rowKey(), c != nil
	}
	// What balancers may draw, compareSet has looked at.
	return c.key, nlconn.Order.Uint32(key[4:]) < c.shape().size && (i == sMembers) == (c.time > 0)
}

func (s *setClaim) rowKey() lb.Key {
	if s == nil {
		return lb.Key{}
	}
	return s.key
}

func keyOf(f *lb.Frontend) lb.Key {
	if f == nil {
		return lb.Key{}
	}
	return f.Key
}
