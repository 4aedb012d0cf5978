//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/plane/internal/diff"
)

// snapshot is the content of the kernel's table, as far as a comparison needs it.
type snapshot struct {
	rule.Kept
	ours bool // it is in force and has all our sets and base chains, unchanged

	records  [setCount]diff.Records
	verdicts [setCount]map[string]wire.Verdict
}

// reader reads our table on a socket.
type reader struct {
	wire.Table
	*layout
	bigMap int
	// calm reports whether a list of elements is valid although changes of the ruleset interrupted
	// it.
	calm func() bool
}

// reader returns the plane's reader. Other programs may change their tables all the time, which
// does not affect what we read of ours. The monitor notices a change of our table, so an audit
// compares it again.
func (p *Plane) reader() reader { return p.readerBy(p.sock, p.mon.silent) }

func (p *Plane) readerBy(s *wire.Socket, calm func() bool) reader {
	return reader{wire.Table{Socket: s, Family: p.ip.Proto, Name: TableName}, &p.readLayout, p.bigMap, calm}
}

// readTable reads our table, with the elements of the sets that which selects, and the generation
// of the ruleset at the beginning. It retries a few times if another program changes the ruleset
// meanwhile.
func (p *Plane) readTable(ctx context.Context, which func(*wire.Set) bool) (*snapshot, uint32, error) {
	for try := 0; ; try++ {
		gen, err := p.sock.Generation(ctx)
		if err != nil {
			return nil, 0, fmt.Errorf("nftables %s: read the ruleset's generation: %w", p.ip.Family, err)
		}
		s, err := p.reader().once(ctx, which)
		if err == nil {
			return s, gen, nil
		}
		if !errors.Is(err, netlink.ErrInterrupted) || try == 9 {
			return nil, 0, fmt.Errorf("nftables %s: read the table: %w", p.ip.Family, err)
		}
	}
}

// once reads the table's structure and, if it is our layout, the elements of sets.
func (r reader) once(ctx context.Context, which func(*wire.Set) bool) (*snapshot, error) {
	s, err := r.structure(ctx)
	if err == nil && s.ours {
		err = r.elements(ctx, s, which)
	}
	return s, err
}

// structure reads everything except elements.
func (r reader) structure(ctx context.Context) (*snapshot, error) {
	is, err := rule.Read(ctx, r.Table, r.sets[:])
	return &snapshot{Kept: is, ours: is.Serves(r.ruleset().skeleton())}, err
}

// allSets selects the sets whose elements are ours: all except those that packets fill.
func allSets(d *wire.Set) bool { return !d.Dynamic() }

// smallSets selects the sets that grow slowly or never, so each audit reads them.
func smallSets(d *wire.Set) bool { return d.Verdict || d.Name == "equal-bytes" || d.Name == "reserved" }

// elements reads the elements of the existing sets that which selects.
func (r reader) elements(ctx context.Context, s *snapshot, which func(*wire.Set) bool) error {
	for i := range setCount {
		d := r.sets[i]
		s.records[i].Size = d.RecordLen()
		if d.Verdict {
			s.verdicts[i] = map[string]wire.Verdict{}
		}
		if !s.There[i] || !which(&d) {
			continue
		}
		big, err := false, error(nil)
		if i == sBackends {
			big, err = r.readBig(ctx, s)
		}
		if !big && err == nil {
			err = r.EachElement(ctx, d.Name, func(el []byte) { s.element(i, &d, el) })
		}
		if err != nil && !(errors.Is(err, netlink.ErrInterrupted) && r.calm()) {
			return fmt.Errorf("elements of %s: %w", d.Name, err)
		}
	}
	return nil
}

// element adds one element from the kernel's reply to the snapshot.
func (s *snapshot) element(i setIndex, d *wire.Set, el []byte) {
	if d.Verdict {
		s.verdicts[i][string(wire.ElementKey(el))] = wire.VerdictOf(netlink.Attribute(el, unix.NFTA_SET_ELEM_DATA))
		return
	}
	s.records[i].Bytes = d.Record(s.records[i].Bytes, el)
}
