//go:build linux

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/trace"
)

// Differences is part of mode.Looker. It asks the kernel for the elements of some rows at a time, so that it needs a few bytes for each
// backend set and none for the elements; then it lists the maps for what no row wants. Ids, slots and members are taken as the kernel has
// them: what counts is where they lead.
func (p *Plane) Differences(ctx context.Context, want *lb.Table, each func(trace.Difference) bool) error {
	more := true
	sock, err := wire.Open()
	if err == nil {
		defer sock.Close()
		err = p.look.differences(ctx, sock, want, func(d trace.Difference) bool { more = each(d); return more })
	}
	if err != nil {
		return fmt.Errorf("nftables %s: compare the kernel with the table: %w", p.look.IP.Family, err)
	}
	if more {
		p.localhost.Differences(want, each)
	}
	return nil
}

func (l *layout) differences(ctx context.Context, sock *wire.Socket, want *lb.Table, each func(trace.Difference) bool) error {
	d := &differ{reader: newReader(l, sock), Teller: mode.NewTeller(ctx, each), ctx: ctx, want: want, rules: l.ruleset(), owners: map[uint32]*setClaim{}, lists: map[uint32]*lb.Frontend{}}
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
	members  []uint64 // of sets with affinity, with their set ids
	// lists are the same for lists of source ranges: by number, a row that has the ranges; and rows whose list has others.
	lists     map[uint32]*lb.Frontend
	strangers []*lb.Frontend
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
		return d.Tell(lb.Key{}, name, wire.IsThere, "")
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

// get returns the data of the elements of those keys that are there; none of a set that is not as we make it.
func (d *differ) get(i setIndex, keys [][]byte) (map[string][]byte, error) {
	if !d.there[i] {
		return nil, nil
	}
	return d.Get(d.ctx, &d.sets[i], keys)
}
