//go:build linux

package iptables

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"kube-proxy/internal/xtables"
	"kube-proxy/plane"
	"slices"
)

// handOver runs iptables-restore on what write writes, and counts what that is: write notes the sections. While it runs the
// fingerprint is kept up to date; transactions are what the nft back end makes of it.
func (p *Plane) handOver(ctx context.Context, transactions int, write func(out io.Writer, note func(*xtables.Section)) error) error {
	var text counted
	var chains int
	var rules Written
	change := func() error {
		return p.tool.Restore(ctx, func(out io.Writer) error {
			text.to = out
			return write(&text, func(s *xtables.Section) {
				chains += len(s.Write)
				rules.add(s)
			})
		})
	}
	var err error
	if p.fingerprints == nil {
		err = change()
	} else {
		p.seen, err = p.fingerprints.Own(p.seen, transactions, change)
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
func (p *Plane) restore(ctx context.Context, b *xtables.Batch) error {
	text := b.Text()
	err := p.handOver(ctx, len(b.Sections), func(out io.Writer, note func(*xtables.Section)) error {
		for _, s := range b.Sections {
			note(s)
		}
		_, err := out.Write(text)
		return err
	})
	if err == nil {
		return nil
	}
	if xtables.Partly(ctx, b, err) {
		return fmt.Errorf("%w: a part may be in force: %w", err, plane.ErrStateLost)
	}
	return err
}

// restoreAll hands all batches to one iptables-restore, which reads while they are made. declare names the chains of nat
// that they write.
func (p *Plane) restoreAll(ctx context.Context, declare []string, batches <-chan *xtables.Batch) error {
	first, ok := <-batches
	if !ok {
		return nil
	}
	return p.handOver(ctx, int(xtables.Tables), func(out io.Writer, note func(*xtables.Section)) error {
		w := bufio.NewWriterSize(out, 64<<10)
		for _, s := range first.Sections {
			if s.Table != xtables.NAT {
				note(s)
				w.Write(s.AppendText(nil))
			}
		}
		for _, c := range first.Only(xtables.NAT).Write {
			declare = append(declare, c.ID.Name)
		}
		// Backwards, see [section.appendText].
		slices.SortFunc(declare, func(a, b string) int { return cmp.Compare(b, a) })
		text := xtables.AppendDeclared(xtables.NAT.AppendTable(nil), slices.Compact(declare))
		var last []*xtables.Section
		for b := first; b != nil; b = <-batches {
			for _, s := range b.Sections {
				switch {
				case s.Table == xtables.NAT:
					note(s)
					text = s.AppendRules(text)
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
		w.WriteString(xtables.Commit)
		for _, s := range last {
			note(s)
			w.Write(s.AppendText(nil))
		}
		return w.Flush()
	})
}

// refusal is iptables' no to what a Reset was to write, after which nothing of the table is in force.
type refusal struct{ *xtables.RunError }

func (r refusal) Unwrap() error { return r.RunError }
