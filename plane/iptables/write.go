//go:build linux

package iptables

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"kube-proxy/plane"
	"slices"
)

// handOver runs iptables-restore on what write writes, and counts what that is: write notes the sections. While it runs the
// fingerprint is kept up to date; transactions are what the nft back end makes of it.
func (p *Plane) handOver(ctx context.Context, transactions int, write func(out io.Writer, note func(*section)) error) error {
	var text counted
	var chains int
	var rules Written
	change := func() error {
		return p.tool.restore(ctx, func(out io.Writer) error {
			text.to = out
			return write(&text, func(s *section) {
				chains += len(s.write)
				rules.add(s)
			})
		})
	}
	var err error
	if p.fingerprints == nil {
		err = change()
	} else {
		p.seen, err = p.fingerprints.own(p.seen, transactions, change)
	}
	p.count(func(s *Stats) {
		s.Restores++
		s.Bytes += text.n
		s.Chains += uint64(chains)
		s.Last.plus(rules)
		if err != nil {
			s.Failures++
		}
	})
	return err
}

// counted counts the bytes that go through it.
type counted struct {
	to io.Writer
	n  uint64
}

func (c *counted) Write(b []byte) (int, error) {
	c.n += uint64(len(b))
	return c.to.Write(b)
}

// restore runs iptables-restore on a batch. The error wraps plane.ErrStateLost where a part may be in force.
func (p *Plane) restore(ctx context.Context, b *batch) error {
	text := b.text()
	err := p.handOver(ctx, len(b.sections), func(out io.Writer, note func(*section)) error {
		for _, s := range b.sections {
			note(s)
		}
		_, err := out.Write(text)
		return err
	})
	if err == nil {
		return nil
	}
	if partly(ctx, b, err) {
		return fmt.Errorf("%w: a part may be in force: %w", err, plane.ErrStateLost)
	}
	return err
}

// restoreAll hands all batches to one iptables-restore, which reads while they are made. declare names the chains of nat
// that they write.
func (p *Plane) restoreAll(ctx context.Context, declare []string, batches <-chan *batch) error {
	first, ok := <-batches
	if !ok {
		return nil
	}
	return p.handOver(ctx, int(tables), func(out io.Writer, note func(*section)) error {
		w := bufio.NewWriterSize(out, 64<<10)
		for _, s := range first.sections {
			if s.table != nat {
				note(s)
				w.Write(s.appendText(nil))
			}
		}
		for _, c := range first.only(nat).write {
			declare = append(declare, c.id.name)
		}
		// Backwards, see [section.appendText].
		slices.SortFunc(declare, func(a, b string) int { return cmp.Compare(b, a) })
		text := appendDeclared(nat.appendTable(nil), slices.Compact(declare))
		var last []*section
		for b := first; b != nil; b = <-batches {
			for _, s := range b.sections {
				switch {
				case s.table == nat:
					note(s)
					text = s.appendRules(text)
				case b != first:
					last = append(last, s)
				}
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
			text = text[:0]
		}
		if err := ctx.Err(); err != nil { // these may not have been all, and to commit would empty the chains of the others
			return err
		}
		w.WriteString(commit)
		for _, s := range last {
			note(s)
			w.Write(s.appendText(nil))
		}
		return w.Flush()
	})
}

// refusal is iptables' no to what a Reset was to write, after which nothing of the table is in force.
type refusal struct{ *runError }

func (r refusal) Unwrap() error { return r.runError }
