//go:build linux

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// pace is how much an Apply writes in a fraction of a second, as [lb.Weight] counts; constant but for tests.
const pace = 15_000

// Pace is what an Apply should weigh at most.
func (p *Plane) Pace() int { return p.pace }

// trust says whether a reading of our table shows all that is in it. Others may have added what no reading shows, such as an
// element of a map that is read by key. The kernel then refuses what follows from the reading, however often it is tried.
type trust int

const (
	trusted   trust = iota
	doubted         // the kernel refused what followed from the last reading
	untrusted       // it did so twice in a row: the table is replaced
)

// guardedTries is how often a Reset has the kernel check that nobody changed the ruleset since it was read. Beside a neighbour
// who changes his tables all the time it then goes without; what that misses, the audit finds.
const guardedTries = 3

// Reset makes the table hold exactly what want says, in one transaction. It reads the kernel and changes only
// what differs; a table of another layout, such as that of upstream's nftables mode, is replaced whole, in
// that same transaction, while another one stands in (standin.go). Only where there is no table at all a large one is
// filled before, see load.
//
// It leaves rows for later that cannot be held and, where a table of ours is in force, those that it does not have, if they
// are more than an Apply should have. A table that is not there, or another's, is written whole: from its first moment it
// refuses what no row matches, though rules of another mode may serve that (docs/adr/0007).
//
// If the kernel does not hold what was read of it, the error wraps plane.ErrStateLost, and the next Reset knows: see [trust].
func (p *Plane) Reset(ctx context.Context, want *lb.Table) (res plane.ResetResult, err error) {
	before := *p.rules
	stoodIn := false
	for try := 0; ; try++ {
		res, err = p.resetOnce(ctx, want, try < guardedTries, &stoodIn)
		if try == guardedTries || !errors.Is(err, unix.ERESTART) {
			break
		}
	}
	if err == nil {
		p.trust = trusted
		return res, nil
	}
	*p.rules = before
	if errors.Is(err, plane.ErrStateLost) && !errors.Is(err, netlink.ErrNoAnswer) {
		p.trust = min(p.trust+1, untrusted)
	}
	return res, err
}

// resetOnce reads the kernel and writes what differs. If it is guarded the kernel refuses that, by ERESTART, where somebody
// changed the ruleset in between.
func (p *Plane) resetOnce(ctx context.Context, want *lb.Table, guarded bool, stoodIn *bool) (plane.ResetResult, error) {
	snap, gen, err := p.readForReset(ctx)
	if err == nil && snap.Present && !snap.ours && !*stoodIn {
		// Without it packets under way may go astray; what the kernel refuses, it refuses of the table proper too.
		_ = p.standIn(ctx, want)
		*stoodIn = true
		snap, gen, err = p.readForReset(ctx)
	}
	if err != nil {
		return plane.ResetResult{}, err
	}
	var res plane.ResetResult
	rows, served := want.All(), p.served(snap)
	for k := range served {
		if want.Get(k) == nil {
			res.Dropped = append(res.Dropped, k)
		}
	}
	if snap.ours {
		rows, res.Later = p.postpone(served, want)
	}
	if !guarded {
		gen = 0
	}
	c, refused, err := p.plan(ctx, snap, want, rows, gen)
	if err == nil {
		err = p.commit(ctx, c.out)
	}
	if err != nil {
		return plane.ResetResult{}, err
	}
	p.st = c.st
	p.localhost.Reset(want)
	_ = p.measureAffinity(ctx) // what is in the way of it, the next full audit reports
	if err := p.standDown(ctx); err != nil {
		return plane.ResetResult{}, err
	}
	res.Later = append(res.Later, refused.keys...)
	return res, nil
}

// readForReset reads the table, with the generation of the ruleset that shows whether anybody changes it afterwards.
func (p *Plane) readForReset(ctx context.Context) (*snapshot, uint32, error) {
	gen, err := p.sock.Generation(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables %s: read the ruleset's generation: %w", p.ip.Family, err)
	}
	snap := p.takeEarly(ctx)
	p.mon.take() // what others did so far, the reading shows
	if snap == nil {
		if snap, gen, err = p.readTable(ctx, allSets); err != nil {
			return nil, 0, err
		}
	}
	snap.ours = snap.ours && snap.numbered() && p.trust != untrusted
	return snap, gen, nil
}

// plan stages the way from the snapshot to the rows, for a ruleset of that generation, if it is not 0. Rows that cannot be
// held are left out, and refused names them.
func (p *Plane) plan(ctx context.Context, snap *snapshot, want *lb.Table, rows iter.Seq[*lb.Frontend], gen uint32) (c *change, refused refusedRows, err error) {
	p.rules.node = want.Node
	st, refused := p.desired(snap, want, rows)
	if !st.ids.Left() { // then a new table, with clients forgotten
		snap.ours = false
		st, refused = p.desired(snap, want, rows)
	}
	c = p.newChange(st)
	c.out.Generation = gen
	if snap.ours {
		c.mend(snap, allSets)
		return c, refused, nil
	}
	if snap.Present {
		c.out.DeleteTable()
	}
	return c, refused, p.load(ctx, c, !snap.Present)
}

// loadStep is how many elements of a new table one transaction writes.
const loadStep = 50_000

// load stages a new table with all that it holds. If there was none before, inSteps, it writes the most of a large one already:
// the elements, in transactions of their own. No packet sees them before the chains are there, which come all
// at once in the last one. If that does not come about, the next Reset finds a table that is not ours.
//
// In a single transaction the kernel needs far more time for each element of a large table, because its hash
// tables grow behind the back of the writer, who gets ahead of them; and where somebody listens, memory for a
// notification of each.
func (p *Plane) load(ctx context.Context, c *change, inSteps bool) error {
	c.out.AddTable()
	c.out.AddSets()
	var err error
	n := 0
	c.st.records(func(i setIndex, rec []byte) {
		if n++; inSteps && n%p.loadStep == 0 && err == nil {
			err = p.commit(ctx, c.out)
			c.out.Again()
		}
		if err == nil {
			c.out.Add(i, rec)
		}
	})
	if err == nil {
		c.mendStructure(&snapshot{})
	}
	return err
}

// served returns the keys of the frontends that the kernel has.
func (p *Plane) served(snap *snapshot) map[lb.Key]bool {
	keys := make(map[lb.Key]bool, snap.records[sServices].Len())
	for i, n := range map[setIndex]int{sServices: p.ip.AddrLen, sNodePorts: 0} {
		for rec := range snap.records[i].All() {
			keys[wire.ParseKey(rec, n)] = true
		}
	}
	return keys
}

// postpone splits the rows into those to write now and the keys of the others, those of a Service together: rows that the
// kernel has must not wait.
func (p *Plane) postpone(served map[lb.Key]bool, want *lb.Table) (now iter.Seq[*lb.Frontend], later []lb.Key) {
	var weight lb.Weight
	total := 0
	for f := range want.All() {
		if !served[f.Key] {
			later = append(later, f.Key)
			total += weight.Of(f)
		}
	}
	if total <= p.pace {
		return want.All(), nil
	}
	slices.SortFunc(later, func(a, b lb.Key) int {
		return cmp.Or(cmp.Compare(want.Get(a).Service, want.Get(b).Service), a.Compare(b))
	})
	return func(yield func(*lb.Frontend) bool) {
		for f := range want.All() {
			if served[f.Key] && !yield(f) {
				return
			}
		}
	}, later
}
