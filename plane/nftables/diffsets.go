//go:build linux

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
)

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
	return shape{s.set.ID.Scope, roundSize(uint32(s.set.Backends.Len())), s.time > 0, s.time}
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
			for slot := range c.set.Backends.Len() {
				d.members = append(d.members, memberOf(nlconn.Order.Uint32(have[sMembers][string(wire.AppendNumber(wire.AppendNumber(nil, c.id), uint32(slot)))]), c.id))
			}
		}
	}
	return nil
}

// memberOf is a member of a set as one number.
func memberOf(member, set uint32) uint64 { return uint64(member)<<32 | uint64(set) }

// errDiffers ends a comparison of which it matters only whether something differs.
var errDiffers = errors.New("it differs")

// readSetsOf reads the elements of sets: all that a balancer may draw.
func (d *differ) readSetsOf(claims []*setClaim) (have [setCount]map[string][]byte, err error) {
	var keys [setCount][][]byte
	for _, c := range claims {
		keys[sSetShapes] = append(keys[sSetShapes], wire.AppendNumber(nil, c.id))
		for slot := range c.shape().size {
			in := sBackends
			if c.time > 0 {
				in = sMembers
			}
			keys[in] = append(keys[in], wire.AppendNumber(wire.AppendNumber(nil, c.id), slot))
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
	id, want := wire.AppendNumber(nil, c.id), wire.AppendNumber(nil, c.shape().number())
	if is := have[sSetShapes][string(id)]; d.there[sSetShapes] && !bytes.Equal(is, want) {
		if err := f(sSetShapes, id, d.sets[sSetShapes].DataText(want), d.sets[sSetShapes].DataText(is)); err != nil {
			return err
		}
	}
	lacking := make(map[netip.AddrPort]bool, c.set.Backends.Len())
	for b := range c.set.Backends.All() {
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
		p := place{in: sBackends, key: wire.AppendNumber(wire.AppendNumber(nil, c.id), slot)}
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
			is = wire.ParseAddrPort(data, d.AddrLen)
			p.have = is.String()
		}
		switch {
		case int(slot) >= c.set.Backends.Len():
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
		object := d.object(c.in, wire.AppendKey(nil, c.key))
		text := d.sets[c.in].DataText(wire.AppendNumber(nil, c.id))
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

func (s *setClaim) rowKey() lb.Key {
	if s == nil {
		return lb.Key{}
	}
	return s.key
}
