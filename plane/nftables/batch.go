//go:build linux

package nftables

import (
	"context"
	"fmt"

	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
)

// batch collects one transaction about the table.
type batch struct {
	*ruleset
	*wire.Transaction
	quiet bool // stage nothing: only the state is wanted
}

func (r *ruleset) newBatch(table string) *batch {
	return &batch{ruleset: r, Transaction: wire.NewTransaction(r.Proto, table, r.sets[:])}
}

// addChain creates the chain without its rules.
func (t *batch) addChain(c rule.Chain) {
	if !t.quiet {
		t.AddChain(c.Name, c.Hook)
	}
}

func (t *batch) addRules(c rule.Chain) {
	if !t.quiet {
		c.AddTo(t.Transaction)
	}
}

// add stages an element, as a record.
func (t *batch) add(set setIndex, rec []byte) {
	if !t.quiet {
		t.Add(int(set), rec)
	}
}

// addVerdict stages an element of a verdict map.
func (t *batch) addVerdict(set setIndex, key []byte, v wire.Verdict) {
	if !t.quiet {
		t.AddVerdict(int(set), key, v)
	}
}

// remove stages the end of an element, as a record; its data is not looked at.
func (t *batch) remove(set setIndex, rec []byte) {
	if !t.quiet {
		t.Remove(int(set), rec)
	}
}

// commit sends the batch. Errors are those of [wire.Socket.Commit].
func (p *Plane) commit(ctx context.Context, t *batch) error {
	size, err := p.sock.Commit(ctx, p.ours, t.Transaction)
	if size > 0 {
		p.stats.Batches++
		p.stats.Messages += uint64(t.Last())
		p.stats.Bytes += uint64(size)
	}
	if err != nil {
		p.stats.Failures++
		return fmt.Errorf("nftables %s: %w", p.ip.Family, err)
	}
	return nil
}
