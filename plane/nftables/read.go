//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink/conn"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/plane/internal/diff"
)

// snapshot is what the kernel's table holds, as far as a comparison needs it.
type snapshot struct {
	present bool // there is a table of our name
	ours    bool // it is in force and has all our sets and base chains, as we make them

	chains   map[string]rule.Kept
	foreign  []string // sets that are not ours
	records  [setCount]diff.Records
	verdicts [setCount]map[string]wire.Verdict
}

// reader reads our table by a socket.
type reader struct {
	wire.Table
	*layout
}

func newReader(l *layout, s *wire.Socket) reader {
	return reader{wire.Table{Socket: s, Family: l.Proto, Name: TableName}, l}
}

func (p *Plane) reader() reader { return newReader(&p.rules.layout, p.sock) }

// eachSet calls ours for those of our sets that are there as we make them, and others for all else.
func (r reader) eachSet(ctx context.Context, ours func(setIndex), others func(name string)) error {
	return r.EachSet(ctx, func(name string, body []byte) {
		i := setIndex(slices.IndexFunc(r.sets[:], func(d wire.Set) bool { return d.Name == name }))
		switch {
		case nlconn.BE32(nlconn.Attribute(body, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS != 0: // goes with its rule
		case i >= 0 && r.sets[i].Matches(body):
			ours(i)
		default:
			others(name)
		}
	})
}

// readTable reads our table, with the elements of the sets that which selects, and the generation of the ruleset at the
// beginning. It tries again a few times if somebody changes the ruleset meanwhile.
func (p *Plane) readTable(ctx context.Context, which func(*wire.Set) bool) (*snapshot, uint32, error) {
	for try := 0; ; try++ {
		gen, err := p.sock.Generation(ctx)
		if err != nil {
			return nil, 0, fmt.Errorf("nftables %s: read the ruleset's generation: %w", p.ip.Family, err)
		}
		s, err := p.readOnce(ctx, which)
		if err == nil {
			return s, gen, nil
		}
		if !errors.Is(err, nlconn.ErrInterrupted) || try == 9 {
			return nil, 0, fmt.Errorf("nftables %s: read the table: %w", p.ip.Family, err)
		}
	}
}

func (p *Plane) readOnce(ctx context.Context, which func(*wire.Set) bool) (*snapshot, error) {
	s := &snapshot{}
	present, dormant, err := p.reader().State(ctx)
	if s.present = present; !present {
		return s, err
	}
	if err == nil {
		err = wire.Undisturbed(ctx, func() error { s.foreign = nil; return p.readSets(ctx, s) })
	}
	if err == nil {
		err = p.readChains(ctx, s)
	}
	s.ours = s.ours && !dormant
	if err == nil && s.ours {
		err = p.readElements(ctx, s, which)
	}
	return s, err
}

// readSets finds out whether the sets are ours.
func (p *Plane) readSets(ctx context.Context, s *snapshot) error {
	matching := 0
	err := p.reader().eachSet(ctx, func(setIndex) { matching++ }, func(name string) {
		if _, known := p.mon.index[name]; !known {
			s.foreign = append(s.foreign, name)
		}
	})
	s.ours = matching == int(setCount)
	return err
}

// readChains reads the chains of our table, and a digest of their rules.
func (p *Plane) readChains(ctx context.Context, s *snapshot) (err error) {
	s.chains, err = rule.Read(ctx, p.reader().Table)
	for _, c := range p.rules.skeleton() {
		s.ours = s.ours && s.chains[c.Name].Hook == c.Hook
	}
	return err
}

// allSets are the sets whose elements are ours: all but those that packets fill.
func allSets(d *wire.Set) bool { return !d.Dynamic() }

// smallSets are those that grow slowly, if at all, so that each audit reads them.
func smallSets(d *wire.Set) bool {
	return d.Verdict || d.Name == "equal-bytes" || d.Name == "reserved"
}

func (p *Plane) readElements(ctx context.Context, s *snapshot, which func(*wire.Set) bool) error {
	for i := range setCount {
		d := &p.rules.sets[i]
		s.records[i].Size = d.RecordLen()
		if !which(d) {
			continue
		}
		if i == sBackends {
			big, err := p.readBig(ctx, s)
			if err != nil {
				return fmt.Errorf("elements of %s: %w", d.Name, err)
			}
			if big {
				continue
			}
		}
		if d.Verdict {
			s.verdicts[i] = map[string]wire.Verdict{}
		}
		err := p.reader().EachElement(ctx, d.Name, func(el []byte) { s.element(i, d, el) })
		// Others may change their tables all the time, which does no harm to what we read of ours; and of a change
		// of ours the monitor hears, so that it is looked at again.
		if errors.Is(err, nlconn.ErrInterrupted) && p.mon.silent() {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("elements of %s: %w", d.Name, err)
		}
	}
	return nil
}

// element adds one element of the kernel's answer to the snapshot.
func (s *snapshot) element(i setIndex, d *wire.Set, el []byte) {
	if d.Verdict {
		s.verdicts[i][string(wire.ElementKey(el))] = wire.VerdictOf(nlconn.Attribute(el, unix.NFTA_SET_ELEM_DATA))
		return
	}
	s.records[i].Bytes = d.Record(s.records[i].Bytes, el)
}
