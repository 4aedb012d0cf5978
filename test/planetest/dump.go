package planetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Dump returns the plane's state as text. The plane offers it by a method Dump() string or Dump()
// (string, error): all that decides about packets, in a canonical order, without numbers that
// depend on how the state was reached.
func Dump(p any) (string, error) {
	switch d := p.(type) {
	case interface{ Dump() string }:
		return d.Dump(), nil
	case interface{ Dump() (string, error) }:
		return d.Dump()
	}
	return "", errors.New("the plane has no method Dump")
}

// difference shows the lines that only one of two texts has.
func difference(want, got string) string {
	count := map[string]int{}
	for l := range strings.Lines(want) {
		count[l]--
	}
	for l := range strings.Lines(got) {
		count[l]++
	}
	var b strings.Builder
	for _, l := range slices.Sorted(maps.Keys(count)) {
		switch n := count[l]; {
		case n < 0:
			fmt.Fprintf(&b, "- %s", l)
		case n > 0:
			fmt.Fprintf(&b, "+ %s", l)
		}
	}
	if b.Len() == 0 {
		b.WriteString("(the same lines in another order)\n")
	}
	return b.String()
}
