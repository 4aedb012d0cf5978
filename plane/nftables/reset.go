//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// maxBatchWeight is the weight that an Apply can write in a fraction of a second, see [lb.Weight].
// Only tests change it.
const maxBatchWeight = 15_000

// MaxBatchWeight returns the recommended maximum weight of an Apply.
func (p *Plane) MaxBatchWeight() int { return p.maxBatchWeight }

// trust is the degree to which a reading of our table is complete. Another program may have added
// objects that no reading shows, such as an element of a map that is read by key. The kernel then
// refuses the changes derived from the reading, on every attempt.
type trust int

const (
	trusted   trust = iota
	doubted         // the kernel refused the changes derived from the last reading
	untrusted       // it did so twice in a row: the next Reset replaces the table
)

// guardedTries is how many attempts of a Reset make the kernel check that the ruleset is still the
// one that was read. If another program changes its tables all the time, the last attempt runs
// without that check; the audit finds the changes it misses.
const guardedTries = 3

// Reset makes the table hold exactly what want requires, in one transaction. It reads the kernel
// and changes only differences. A table of another layout, such as that of upstream's nftables
// mode, is replaced in the same transaction, while a stand-in serves (standin.go). Only if no table
// exists, a large one is filled before that transaction, see load.
//
// Reset returns frontends that the plane cannot hold as later. If a table of ours is in force, it
// also postpones frontends missing in it ([plane.Postpone]). A missing or
// foreign table is written whole: from its first moment it refuses packets that match no frontend,
// though rules of another mode may serve them (docs/adr/0007).
//
// If the kernel does not hold what Reset read, the error wraps plane.ErrStateLost, and the next
// Reset takes that into account: see [trust].
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

// resetOnce reads the kernel and writes the differences. If it is guarded, the kernel refuses them
// with ERESTART if another program changed the ruleset in between.
func (p *Plane) resetOnce(ctx context.Context, want *lb.Table, guarded bool, stoodIn *bool) (plane.ResetResult, error) {
	snap, gen, err := p.readForReset(ctx)
	if err == nil && snap.Present && !snap.ours && !*stoodIn {
		// Without the stand-in, packets on their way may get lost. If the kernel refuses it, it
		// refuses the table proper too.
		_ = p.standIn(ctx, want)
		*stoodIn = true
		snap, gen, err = p.readForReset(ctx)
	}
	if err != nil {
		return plane.ResetResult{}, err
	}
	res := plane.ResetResult{Dropped: plane.Dropped(p.served(snap), want)}
	rows := want.All()
	if snap.ours {
		now, later := plane.Postpone(p, rows, p.maxBatchWeight, p.serves(snap))
		rows, res.Later = slices.Values(now), plane.Keys(later)
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
	_ = p.measureAffinity(ctx) // the next full audit reports an error
	if err := p.standDown(ctx); err != nil {
		return plane.ResetResult{}, err
	}
	res.Later = append(res.Later, refused.keys...)
	return res, nil
}

// readForReset reads the table, with the generation of the ruleset that shows whether a later
// change happens.
func (p *Plane) readForReset(ctx context.Context) (*snapshot, uint32, error) {
	gen, err := p.sock.Generation(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("nftables %s: read the ruleset's generation: %w", p.ip.Family, err)
	}
	snap := p.takeEarly(ctx)
	p.mon.take() // the reading contains all changes noted so far
	if snap == nil {
		snap, gen, err = p.readTable(ctx, allSets)
		if err != nil {
			return nil, 0, err
		}
	}
	snap.ours = snap.ours && snap.numbered() && p.trust != untrusted
	return snap, gen, nil
}

// plan stages the changes from the snapshot to the frontends, for a ruleset of that generation, or
// any if it is 0. It leaves out frontends that the plane cannot hold, and returns them as refused.
func (p *Plane) plan(ctx context.Context, snap *snapshot, want *lb.Table, rows iter.Seq[*lb.Frontend],
	gen uint32) (c *change, refused refusedRows, err error) {
	p.rules.node = want.Node
	st, refused := p.desired(snap, want, rows)
	if !st.ids.Left() { // then a new table, without the clients' affinity
		snap.ours = false
		st, refused = p.desired(snap, want, rows)
	}
	c = p.newChange(st)
	c.out.Generation = gen
	if snap.ours {
		c.repair(snap, allSets)
		return c, refused, nil
	}
	if snap.Present {
		c.out.DeleteTable()
	}
	return c, refused, p.load(ctx, c, !snap.Present)
}

// loadStep is the number of elements of a new table that one transaction writes.
const loadStep = 50_000

// load stages a new table with all its content. With inSteps, if no table existed, it first writes
// chains without hooks and most elements of a large table, in separate transactions. Packets see
// none of them before the last transaction adds the base chains. If that fails, the next Reset
// finds a table that is not ours.
//
// In a single transaction the kernel needs far more time for each element of a large table: its
// hash tables grow in the background, and the writer overtakes them. If a program listens, the
// kernel also needs memory for one notification of each element. Rules precede elements, because
// the kernel walks a map for each chain that begins to use it.
func (p *Plane) load(ctx context.Context, c *change, inSteps bool) error {
	c.out.AddTable()
	c.out.AddSets()
	chains, verdicts := c.structure()
	inner := func(ch rule.Chain) bool { return ch.Hook == (wire.Hook{}) }
	for _, ch := range chains {
		if inner(ch) {
			c.addChains(ch)
		}
	}
	c.mendVerdicts([setCount]map[string]wire.Verdict{}, verdicts)
	var err error
	n := 0
	c.st.records(func(i setIndex, rec []byte) {
		n++
		if inSteps && n%p.loadStep == 0 && err == nil {
			err = p.commit(ctx, c.out)
			c.out.Again()
		}
		if err == nil {
			c.out.Add(i, rec)
		}
	})
	c.addChains(slices.DeleteFunc(chains, inner)...)
	return err
}

// served yields the keys of the frontends that the kernel has.
func (p *Plane) served(snap *snapshot) iter.Seq[lb.Key] {
	return func(yield func(lb.Key) bool) {
		for i, n := range map[setIndex]int{sServices: p.ip.AddrLen, sNodePorts: 0} {
			for rec := range snap.records[i].All() {
				if !yield(wire.ParseKey(rec, n)) {
					return
				}
			}
		}
	}
}

// serves returns a function that reports whether the kernel has the frontend.
func (p *Plane) serves(snap *snapshot) func(*lb.Frontend) bool {
	for _, i := range []setIndex{sServices, sNodePorts} {
		snap.records[i] = snap.records[i].Sorted()
	}
	var key []byte
	return func(f *lb.Frontend) (is bool) {
		i, _, _ := mapsOf(f.Key)
		key = wire.AppendKey(key[:0], f.Key)
		snap.records[i].Each(key, func([]byte) { is = true })
		return is
	}
}
