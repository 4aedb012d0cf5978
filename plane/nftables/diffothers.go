//go:build linux

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane/internal/ranges"
)

// findOthers lists the maps for elements that no row wants. Of a map that would take long to list (see bigMap), the packets reach no more than
// compareRows has looked at.
func (d *differ) findOthers() error {
	slices.Sort(d.members)
	backends := 0
	for _, c := range d.owners {
		backends += c.set.Backends.Len()
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
		k = wire.ParseKey(key, addrLen)
		if f := d.want.Get(k); f != nil && !f.Accepts() {
			return f
		}
		return nil
	}
	switch i {
	case sServices:
		return k, row(d.AddrLen) != nil
	case sNodePorts:
		return k, row(0) != nil
	case sClusterSets, sLocalSets, sNodePortClusterSets, sNodePortLocalSets:
		n, scope := d.AddrLen, lb.Cluster
		if i == sNodePortClusterSets || i == sNodePortLocalSets {
			n = 0
		}
		if i == sLocalSets || i == sNodePortLocalSets {
			scope = lb.Local
		}
		f := row(n)
		return k, f != nil && f.Set(scope) != nil
	case sSourceLists:
		f := row(d.AddrLen)
		return k, f != nil && len(f.Sources) > 0
	case sSourceRanges:
		f := d.lists[nlconn.Order.Uint32(key)>>lengthBits]
		return keyOf(f), f != nil && (&sourceList{ranges: ranges.Of(f.Sources)}).has(key)
	case sClusterIPs:
		_, ok := slices.BinarySearchFunc(d.clusterIPs, wire.ParseAddr(key), netip.Addr.Compare)
		return k, ok
	case sEqualBytes:
		return k, bytes.Equal(key[:4], key[4:]) && bytes.Equal(key[1:4], make([]byte, 3))
	case sReserved:
		n := nlconn.Order.Uint32(key)
		return k, n == reservedIDs || n == reservedSeed
	case sMemberBackends:
		id := nlconn.Order.Uint32(key[4:])
		c := d.owners[id]
		_, ok := slices.BinarySearch(d.members, memberOf(nlconn.Order.Uint32(key), id))
		return c.rowKey(), c != nil && (ok || c.told)
	}
	c := d.owners[nlconn.Order.Uint32(key)]
	if c == nil || i == sSetShapes {
		return c.rowKey(), c != nil
	}
	// What balancers may draw, compareSet has looked at.
	return c.key, nlconn.Order.Uint32(key[4:]) < c.shape().size && (i == sMembers) == (c.time > 0)
}

func keyOf(f *lb.Frontend) lb.Key {
	if f == nil {
		return lb.Key{}
	}
	return f.Key
}
