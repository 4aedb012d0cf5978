//go:build linux

package nftables

import (
	"context"
	"fmt"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/nft/wire"
)

// batch collects one transaction about the table.
type batch struct {
	*ruleset
	wire.Transaction
	deletes, adds [setCount]*wire.Elements // nil where there are none: a change touches few of the sets
	quiet         bool                     // stage nothing: only the state is wanted
}

func (r *ruleset) newBatch(table string) *batch {
	return &batch{ruleset: r, Transaction: wire.Transaction{Family: r.proto, Table: table}}
}

// addChain creates the chain without its rules.
func (t *batch) addChain(c chain) {
	if !t.quiet {
		t.AddChain(c.name, c.hook)
	}
}

func (t *batch) addRules(c chain) {
	if t.quiet {
		return
	}
	for _, r := range c.rules {
		t.AddRule(c.name, r.exprs, userdata.AppendString(nil, userdata.TypeComment, r.comment))
	}
}

// again makes the batch, which has been sent, an empty one that writes its elements to the same buffers.
func (t *batch) again() {
	next := t.newBatch(t.Table)
	next.adds, next.Spare, next.quiet = t.adds, t.Spare, t.quiet
	for _, e := range t.adds {
		next.Spare = e.Reuse(next.Spare)
	}
	*t = *next
}

// add stages an element, as a record (see schema.go).
func (t *batch) add(set setIndex, rec []byte) {
	if t.quiet {
		return
	}
	d := &t.sets[set]
	e := t.ToAdd(&t.adds[set], d.Name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	value := appendElementKey(e, d, rec)
	if d.Data != nil {
		n := e.Nest(unix.NFTA_SET_ELEM_DATA)
		e.Bytes(unix.NFTA_DATA_VALUE, value)
		e.EndNest(n)
	}
	e.EndNest(at)
}

// addVerdict stages an element of a verdict map.
func (t *batch) addVerdict(set setIndex, key []byte, v elementVerdict) {
	if t.quiet {
		return
	}
	e := t.ToAdd(&t.adds[set], t.sets[set].Name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	appendElementKey(e, &t.sets[set], key)
	n := e.Nest(unix.NFTA_SET_ELEM_DATA)
	m := e.Nest(unix.NFTA_DATA_VERDICT)
	e.U32(unix.NFTA_VERDICT_CODE, uint32(int32(v.Kind)))
	if v.Chain != "" {
		e.Str(unix.NFTA_VERDICT_CHAIN, v.Chain)
	}
	e.EndNest(m)
	e.EndNest(n)
	e.EndNest(at)
}

// remove stages the end of an element, as a record; its data is not looked at.
func (t *batch) remove(set setIndex, rec []byte) {
	if t.quiet {
		return
	}
	e := t.ToRemove(&t.deletes[set], t.sets[set].Name)
	at := e.Nest(unix.NFTA_LIST_ELEM)
	appendElementKey(e, &t.sets[set], rec)
	e.EndNest(at)
}

// appendElementKey writes the key part of a record and returns the rest.
func appendElementKey(e *wire.Encoder, d *wire.Set, rec []byte) []byte {
	k := d.KeyLen()
	n := e.Nest(unix.NFTA_SET_ELEM_KEY)
	e.Bytes(unix.NFTA_DATA_VALUE, rec[:k])
	e.EndNest(n)
	return rec[k:]
}

// buffers ends the batch and returns what to send; nil if nothing is staged.
func (t *batch) buffers() (bufs [][]byte, last uint32) { return t.Buffers(t.deletes[:], t.adds[:]) }

// commit sends the batch. Errors name the object. Those that can only mean that the kernel does not hold
// what we think wrap plane.ErrStateLost.
func (p *Plane) commit(ctx context.Context, t *batch) error {
	bufs, last := t.buffers()
	if bufs == nil {
		return nil
	}
	p.stats.Batches++
	p.stats.Messages += uint64(t.Last())
	size, err := p.sock.Write(ctx, p.ours, bufs, last)
	p.stats.Bytes += uint64(size)
	if err == nil {
		return nil
	}
	p.stats.Failures++
	return fmt.Errorf("nftables %s: %w", p.fam, wire.Outcome(err, t.WhatIs))
}
