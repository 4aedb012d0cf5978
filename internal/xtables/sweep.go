//go:build linux

package xtables

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"kube-proxy/internal/bisect"
)

// stuckChain is a chain that cannot be deleted, and the error: usually a rule of other software
// jumps to it.
type stuckChain struct {
	ID  ChainID
	err error
}

// Sweep empties chains, and deletes those of drop, at most so many in a restore. It returns the
// chains that cannot be deleted; they stay, empty. An error means that no write succeeds.
func Sweep(ctx context.Context, empty, drop []ChainID, most int, restore func(*Batch) error) (stuck []stuckChain,
	err error) {
	// All are emptied before any is deleted, because they jump to each other.
	for part := range slices.Chunk(slices.Concat(empty, drop), most) {
		if err := restore(emptying(part)); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(drop, func(a, b ChainID) int { return cmp.Compare(b.Table, a.Table) })
	for part := range slices.Chunk(drop, most) {
		some, err := deleteChains(ctx, part, restore)
		stuck = append(stuck, some...)
		if err != nil {
			return stuck, err
		}
	}
	return stuck, nil
}

// deleteChains deletes empty chains, which are sorted by table. A failure does not stop the others.
func deleteChains(ctx context.Context, ids []ChainID, restore func(*Batch) error) (stuck []stuckChain, err error) {
	for len(ids) > 0 {
		known := len(stuck)
		s := bisect.New([][]ChainID{ids}, 0)
		for group := s.Next(); group != nil; group = s.Next() {
			var b Batch
			for _, id := range group {
				b.Only(id.Table).Delete(id)
			}
			err = restore(&b)
			switch {
			case err == nil:
				s.Took()
				continue
			case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
				return stuck, err
			case restore(emptying(group)) != nil:
				// The chains are to blame only if iptables accepts other writes. While another
				// program holds the lock, each attempt takes 5 s.
				return stuck, err
			case s.Refused(group):
				stuck = append(stuck, stuckChain{group[0], err})
			}
		}
		ids = s.Left()
		if !s.Promising() && len(stuck) == known { // another search would not find more
			for _, id := range ids {
				stuck = append(stuck, stuckChain{id, err})
			}
			break
		}
	}
	return stuck, nil
}

// emptying returns a batch that empties chains.
func emptying(ids []ChainID) *Batch {
	b := &Batch{}
	for _, id := range ids {
		b.Only(id.Table).Put(Chain{ID: id})
	}
	return b
}
