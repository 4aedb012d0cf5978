//go:build linux

package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
)

// batch is one input of iptables-restore: sections in the order in which they come in force. Each does something.
type batch struct {
	sections []*section
	// handles are rules of tables that iptables cannot read: it cannot delete them, and nf_tables does.
	handles []handled
}

// handled is a rule that nf_tables knows by a number.
type handled struct {
	from   chainID
	handle uint64
}

// transactions is how many nf_tables make of the batch: one for each table, and for the handles of each.
func (b *batch) transactions() int {
	handled := map[table]bool{}
	for _, h := range b.handles {
		handled[h.from.table] = true
	}
	return len(b.sections) + len(handled)
}

// remove deletes a rule, by one of its handles if it has any left there.
func (b *batch) remove(j jump, handles map[jump][]uint64) {
	if h := handles[j]; len(h) > 0 {
		b.handles = append(b.handles, handled{j.from, h[0]})
		handles[j] = h[1:]
		return
	}
	s := b.only(j.from.table)
	s.remove = append(s.remove, j)
}

// section is one table's part; all of it comes in force at once.
type section struct {
	table  table
	write  []chain
	drop   []chainID
	insert []jump
	remove []jump
	at     map[string]int // where in write a chain is
}

// put writes a chain; what was to be done to it before does not count.
func (s *section) put(c chain) {
	if i, again := s.at[c.id.name]; again {
		s.write[i] = c
		return
	}
	if s.at == nil {
		s.at = map[string]int{}
	}
	s.drop = slices.DeleteFunc(s.drop, func(id chainID) bool { return id == c.id })
	s.at[c.id.name] = len(s.write)
	s.write = append(s.write, c)
}

// delete deletes a chain.
func (s *section) delete(id chainID) {
	if i, written := s.at[id.name]; written {
		s.write[i].rules = nil
	}
	s.drop = append(s.drop, id)
}

// section returns the section to write to a table after what has been written to others.
func (b *batch) section(t table) *section {
	if n := len(b.sections); n > 0 && b.sections[n-1].table == t {
		return b.sections[n-1]
	}
	s := &section{table: t}
	b.sections = append(b.sections, s)
	return s
}

// only returns the section of a table where the order of tables does not matter.
func (b *batch) only(t table) *section {
	for _, s := range b.sections {
		if s.table == t {
			return s
		}
	}
	return b.section(t)
}

// appendText writes the section. A declared chain is emptied; all are declared before the first rule, so that
// rules may lead to any.
//
// They are declared backwards: the programs of both back ends keep the names in a sorted list, and look for each from its
// beginning. In any other order the time goes by the square of the number of chains.
func (s *section) appendText(out []byte) []byte {
	out = s.table.appendTable(out)
	names := make([]string, 0, len(s.write)+len(s.drop))
	for _, c := range s.write {
		names = append(names, c.id.name)
	}
	for _, id := range s.drop {
		if _, written := s.at[id.name]; !written {
			names = append(names, id.name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(b, a) })
	out = appendDeclared(out, names)
	out = s.appendRules(out)
	for _, id := range s.drop {
		out = append(out, "-X "...)
		out = append(out, id.name...)
		out = append(out, '\n')
	}
	return append(out, commit...)
}

const commit = "COMMIT\n"

// appendTable writes the first line of a section.
func (t table) appendTable(out []byte) []byte {
	out = append(out, '*')
	out = append(out, t.String()...)
	return append(out, '\n')
}

// appendDeclared writes the declarations of chains.
func appendDeclared(out []byte, names []string) []byte {
	for _, name := range names {
		out = append(out, ':')
		out = append(out, name...)
		out = append(out, " - [0:0]\n"...)
	}
	return out
}

// appendRules writes the rules of chains that are declared.
func (s *section) appendRules(out []byte) []byte {
	rule := func(verb, chain, rule string) {
		out = append(out, verb...)
		out = append(out, chain...)
		out = append(out, ' ')
		out = append(out, rule...)
		out = append(out, '\n')
	}
	for _, c := range s.write {
		for _, r := range c.rules {
			rule("-A ", c.id.name, r)
		}
	}
	for _, j := range s.remove {
		rule("-D ", j.from.name, j.rule)
	}
	for _, j := range s.insert {
		rule("-I ", j.from.name, j.rule)
	}
	return out
}

// rules returns how many rules the section writes.
func (s *section) rules() int {
	n := len(s.insert)
	for _, c := range s.write {
		n += len(c.rules)
	}
	return n
}

// lines returns about how many lines the batch has.
func (b *batch) lines() (n int) {
	for _, s := range b.sections {
		n += s.rules() + len(s.write) + 2*len(s.drop) + len(s.remove)
	}
	return n
}

// text returns the input of iptables-restore.
func (b *batch) text() []byte {
	var out []byte
	for _, s := range b.sections {
		out = s.appendText(out)
	}
	return out
}

// partly reports whether a part of a batch may be in force after the error.
func partly(ctx context.Context, b *batch, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || wasKilled(err) || len(b.sections) > 0 && len(b.handles) > 0 || len(b.sections) > 1 && failedLine(err) > b.firstLines()
}

// wasKilled reports whether a signal ended the program, which may have been after its work.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && !exit.Exited()
}

// failedLine returns the line of which iptables-restore complained, a high number if it did not say.
func failedLine(err error) int {
	var run *runError
	if !errors.As(err, &run) {
		return 0 // it did not start
	}
	if m := lineNumber.FindStringSubmatch(run.said); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1 << 30
}

var lineNumber = regexp.MustCompile(`[Ll]ine:? (\d+)`)

// firstLines returns the number of lines of the first section.
func (b *batch) firstLines() int {
	return bytes.Count(b.sections[0].appendText(nil), []byte("\n"))
}

// How many lines a restore of a Reset has at most, about: where nothing limits them, few enough that the next is rendered
// while one runs. The legacy programs read and write the whole table each time: there all must be one restore, of such
// pieces.
const (
	nftLines   = 20_000
	pieceLines = 3000
)
