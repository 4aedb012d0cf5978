// Package nearest suggests a name for a misspelled one: of a flag, a field, a kind, a Service.
package nearest

import (
	"cmp"
	"iter"
	"slices"
	"strings"
)

// most is the maximum number of edits of a misspelled name.
const most = 2

// Of returns the names that a misspelled name may mean, the nearest first: at most [most] edits
// away and more alike than different, or the same in another block or namespace ("conntrack.min",
// "shop/web"). A bare name is compared with the last part of the others. Capitals do not matter.
// The cost is proportional to the number of names of about the same length.
func Of(name string, known iter.Seq[string]) []string {
	type candidate struct {
		name  string
		edits int
	}
	var all []candidate
	said, short := strings.ToLower(name), last(strings.ToLower(name))
	for k := range known {
		against := strings.ToLower(k)
		if short == said {
			against = last(against)
		}
		edits := most + 1
		if short == last(against) {
			edits = 1
		}
		if d := len(said) - len(against); -most <= d && d <= most {
			edits = min(edits, distance(said, against))
		}
		if edits <= most && 2*edits < len(short) {
			all = append(all, candidate{k, edits})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.edits, b.edits) })
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	return names
}

// DidYouMean is the end of an error about an unknown name: ": did you mean …?" with the nearest
// name; "" if no name is near.
func DidYouMean(name string, known iter.Seq[string], prefix string) string {
	if like := Of(name, known); len(like) > 0 {
		return ": did you mean " + prefix + like[0] + "?"
	}
	return ""
}

// last returns the part of a name after its blocks or its namespace.
func last(s string) string { return s[strings.LastIndexAny(s, "./")+1:] }

// distance returns the number of letters to insert, delete, change or swap with the next. Long
// names are far from any.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	var before, above, row [longest + 1]int
	for j := range len(b) + 1 {
		above[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := above[j]
			if a[i] != b[j] {
				cost++
			}
			row[j+1] = min(cost, row[j]+1, above[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, above = above, row
	}
	return above[len(b)]
}
