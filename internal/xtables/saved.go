//go:build linux

package xtables

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// savedKind is the kind of a line of iptables-save.
type savedKind uint8

const (
	SavedChain      savedKind = iota // a chain exists
	SavedRule                        // a rule of a chain
	savedUnlistable                  // a table exists, with rules that iptables cannot print
)

// SavedLine is a line of the output of iptables-save, or the lines of one rule.
type SavedLine struct {
	Kind  savedKind
	Table string // any table: other software uses tables that the plane does not
	// Chain is the name of the chain. Rest is its policy ("-" for a chain that is not built in), or
	// the rule without "-A NAME ". Both are valid until the next line is read.
	Chain, Rest []byte
	// Handle is the kernel's number of a rule that was read from the kernel; 0 if iptables-save
	// printed it.
	Handle uint64
}

// longestRule exceeds the length of any rule that iptables-save prints.
const longestRule = 64 << 10

// ReadSaved reads the output of iptables-save. It ends at the first error, of the reader or of the
// text, for example if it is cut off.
func ReadSaved(r io.Reader) iter.Seq2[SavedLine, error] {
	return func(yield func(SavedLine, error) bool) {
		in := bufio.NewReaderSize(r, longestRule)
		table, open := "", false // the table, and whether its COMMIT is missing
		for n := 1; ; n++ {
			line, lines, err := readRule(in)
			if err == io.EOF && len(line) == 0 {
				break
			}
			if err == io.EOF && line[0] != '#' && string(line) != "COMMIT" {
				err = io.ErrUnexpectedEOF // a part of a line: the program was ended
			}
			if err != nil && err != io.EOF {
				yield(SavedLine{}, fmt.Errorf("line %d: %w", n, err))
				return
			}
			said, more := SavedLine{Table: table}, true
			switch {
			case len(line) == 0:
			case line[0] == '#':
				if t, unlistable := unlistableTable(line); unlistable {
					said.Kind, said.Table = savedUnlistable, t
					more = yield(said, nil)
				}
			case string(line) == "COMMIT":
				open = false
			case line[0] == '*':
				table, open = string(line[1:]), true
			case line[0] == ':' && open:
				said.Kind = SavedChain
				said.Chain, said.Rest, _ = bytes.Cut(line[1:], []byte(" "))
				more = yield(said, nil)
			case bytes.HasPrefix(line, []byte("-A ")) && open:
				said.Kind = SavedRule
				said.Chain, said.Rest, _ = bytes.Cut(line[3:], []byte(" "))
				more = yield(said, nil)
			default:
				yield(SavedLine{}, fmt.Errorf("line %d: %.80q is neither a chain nor a rule of a table", n, line))
				return
			}
			if !more {
				return
			}
			n += lines - 1
		}
		if open {
			yield(SavedLine{}, fmt.Errorf("table %s ends without COMMIT", table))
		}
	}
}

// readRule reads a line without its end, or the lines of a rule whose comments have line ends:
// iptables-save prints them as they are. The text is valid until the next call.
func readRule(in *bufio.Reader) (text []byte, lines int, err error) {
	var joined []byte
	quoted := false
	for lines = 1; ; lines++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) || len(joined)+len(line) > longestRule {
			return nil, lines, fmt.Errorf("%.80q is longer than any rule", line)
		}
		if joined != nil || bytes.HasPrefix(line, []byte("-A ")) {
			quoted = quoted != opensQuote(line)
		}
		if joined == nil && !quoted {
			return bytes.TrimSuffix(line, []byte("\n")), lines, err
		}
		joined = append(joined, line...)
		if !quoted || err != nil {
			return bytes.TrimSuffix(joined, []byte("\n")), lines, err
		}
	}
}

// opensQuote reports whether a part of a rule has an odd number of quotes.
func opensQuote(part []byte) bool {
	odd := false
	for i := 0; i < len(part); i++ {
		switch part[i] {
		case '\\':
			i++
		case '"':
			odd = !odd
		}
	}
	return odd
}

// unlistableTable returns the table that iptables-save cannot print, according to a comment line.
func unlistableTable(comment []byte) (table string, ok bool) {
	rest, ok := bytes.CutPrefix(comment, []byte("# Table `"))
	if !ok {
		return "", false
	}
	name, said, ok := bytes.Cut(rest, []byte("'"))
	return string(name), ok && bytes.HasPrefix(said, []byte(" is incompatible"))
}
