//go:build linux

package nftables

import (
	"bytes"
	"fmt"
	"slices"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

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
				weight += r.To.Backends.Len()
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
		k := wire.AppendKey(nil, f.Key)
		classes, _, _ := mapsOf(f.Key)
		keys[classes] = append(keys[classes], k)
		for _, c := range d.claims(f) {
			keys[c.in] = append(keys[c.in], k)
		}
		if len(f.Sources) > 0 {
			keys[sSourceLists] = append(keys[sSourceLists], k)
		}
		if isClusterIP(f) {
			keys[sClusterIPs] = append(keys[sClusterIPs], wire.AppendAddr(nil, f.Key.Addr))
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
		k := wire.AppendKey(nil, f.Key)
		classes, _, _ := mapsOf(f.Key)
		want := wire.AppendNumber(nil, uint32(classOf(f)))
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
			a := wire.AppendAddr(nil, f.Key.Addr)
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
		keys = append(keys, wire.AppendAddr(wire.AppendNumber(nil, n|uint32(p.Bits())), p.Addr()))
	}
	have, err := d.get(sSourceRanges, keys)
	return slices.DeleteFunc(keys, func(k []byte) bool { _, ok := have[string(k)]; return ok }), err
}

// compareList tells of a row whose list has not its ranges, or is another's.
func (d *differ) compareList(f *lb.Frontend) error {
	k := wire.AppendKey(nil, f.Key)
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
