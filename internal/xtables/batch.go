//go:build linux

package xtables

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

// Batch is one input of iptables-restore. Its sections take effect in their order.
type Batch struct {
	Sections []*Section
	// handles are rules of tables that iptables cannot read. nf_tables deletes them.
	handles []handled
}

// handled is a rule that nf_tables identifies by a number.
type handled struct {
	from   ChainID
	handle uint64
}

// transactions returns the number of nf_tables transactions that the batch makes: one for each
// table, and one for the handles of each table.
func (b *Batch) transactions() int {
	handled := map[Table]bool{}
	for _, h := range b.handles {
		handled[h.from.Table] = true
	}
	return len(b.Sections) + len(handled)
}

// remove deletes a rule, by one of its handles if it has any left there.
func (b *Batch) remove(j Jump, handles map[Jump][]uint64) {
	if h := handles[j]; len(h) > 0 {
		b.handles = append(b.handles, handled{j.From, h[0]})
		handles[j] = h[1:]
		return
	}
	s := b.Only(j.From.Table)
	s.Remove = append(s.Remove, j)
}

// Section is the part of one table. It takes effect atomically.
type Section struct {
	Table  Table
	Write  []Chain
	Drop   []ChainID
	Insert []Jump
	Remove []Jump
	at     map[string]int // index of a chain in write
}

// Put writes a chain, in place of an earlier Put or Delete of it.
func (s *Section) Put(c Chain) {
	if i, again := s.at[c.ID.Name]; again {
		s.Write[i] = c
		return
	}
	if s.at == nil {
		s.at = map[string]int{}
	}
	s.Drop = slices.DeleteFunc(s.Drop, func(id ChainID) bool { return id == c.ID })
	s.at[c.ID.Name] = len(s.Write)
	s.Write = append(s.Write, c)
}

// Delete deletes a chain.
func (s *Section) Delete(id ChainID) {
	if i, written := s.at[id.Name]; written {
		s.Write[i].Rules = nil
	}
	s.Drop = append(s.Drop, id)
}

// Section returns a section of a table after the batch's present sections.
func (b *Batch) Section(t Table) *Section {
	if n := len(b.Sections); n > 0 && b.Sections[n-1].Table == t {
		return b.Sections[n-1]
	}
	s := &Section{Table: t}
	b.Sections = append(b.Sections, s)
	return s
}

// Only returns the section of a table where the order of tables does not matter.
func (b *Batch) Only(t Table) *Section {
	for _, s := range b.Sections {
		if s.Table == t {
			return s
		}
	}
	return b.Section(t)
}

// appendText writes the section. A declared chain is emptied. All are declared before the first
// rule, so that rules may jump to any of them.
//
// They are declared in reverse order: the programs of both back ends keep the names in a sorted
// list and search it from its beginning. In any other order the time grows with the square of the
// number of chains.
func (s *Section) appendText(out []byte) []byte {
	out = s.Table.appendTable(out)
	names := make([]string, 0, len(s.Write)+len(s.Drop))
	for _, c := range s.Write {
		names = append(names, c.ID.Name)
	}
	for _, id := range s.Drop {
		if _, written := s.at[id.Name]; !written {
			names = append(names, id.Name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(b, a) })
	out = appendDeclared(out, names)
	out = s.appendRules(out)
	for _, id := range s.Drop {
		out = append(out, "-X "+id.Name+"\n"...)
	}
	return append(out, commit...)
}

const commit = "COMMIT\n"

// appendTable writes the first line of a section.
func (t Table) appendTable(out []byte) []byte {
	return append(out, "*"+t.String()+"\n"...)
}

// appendDeclared writes the declarations of chains.
func appendDeclared(out []byte, names []string) []byte {
	for _, name := range names {
		out = append(out, ":"+name+" - [0:0]\n"...)
	}
	return out
}

// appendRules writes the rules of chains that are declared.
func (s *Section) appendRules(out []byte) []byte {
	rule := func(verb, chain, rule string) { out = append(out, verb+" "+chain+" "+rule+"\n"...) }
	for _, c := range s.Write {
		for _, r := range c.Rules {
			rule("-A", c.ID.Name, r)
		}
	}
	for _, j := range s.Remove {
		rule("-D", j.From.Name, j.Rule)
	}
	for _, j := range s.Insert {
		rule("-I", j.From.Name, j.Rule)
	}
	return out
}

// Rules returns the number of rules that the section writes.
func (s *Section) Rules() int {
	n := len(s.Insert)
	for _, c := range s.Write {
		n += len(c.Rules)
	}
	return n
}

// Lines returns the approximate number of lines of the batch.
func (b *Batch) Lines() (n int) {
	for _, s := range b.Sections {
		n += s.Rules() + len(s.Write) + 2*len(s.Drop) + len(s.Remove)
	}
	return n
}

// Text returns the input of iptables-restore.
func (b *Batch) Text() []byte {
	var out []byte
	for _, s := range b.Sections {
		out = s.appendText(out)
	}
	return out
}

// partly reports whether a part of a batch may be in force after the error.
func partly(ctx context.Context, b *Batch, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || wasKilled(err) || len(b.Sections) > 0 &&
		len(b.handles) > 0 || len(b.Sections) > 1 && failedLine(err) > b.firstLines()
}

// wasKilled reports whether a signal ended the program, perhaps after its commit.
func wasKilled(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && !exit.Exited()
}

// failedLine returns the line that iptables-restore rejected, a high number if it is unknown.
func failedLine(err error) int {
	var run *RunError
	if !errors.As(err, &run) {
		return 0 // it did not start
	}
	if m := lineNumber.FindStringSubmatch(run.Said); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1 << 30
}

var lineNumber = regexp.MustCompile(`[Ll]ine:? (\d+)`)

// firstLines returns the number of lines of the first section.
func (b *Batch) firstLines() int { return bytes.Count(b.Sections[0].appendText(nil), []byte("\n")) }

// Approximate number of lines of a Reset's restore: few enough that the next one is rendered while
// one runs. The legacy programs read and write the whole table each time, so with them a Reset is
// one restore, in pieces of PieceLines.
const (
	NFTLines   = 20_000
	PieceLines = 3000
)
