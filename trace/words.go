package trace

import (
	"fmt"
	"strings"

	"kube-proxy/internal/plural"
)

// say adds a sentence to the reasons.
func (q *question) say(format string, args ...any) {
	q.Why = append(q.Why, fmt.Sprintf(format, args...))
}

// most is how many things of a kind a sentence names.
const most = 5

// named is a list in a sentence.
func named[T fmt.Stringer](all []T) string {
	if len(all) == 0 {
		return "none"
	}
	var words []string
	for i, x := range all {
		if i == most {
			return strings.Join(words, ", ") + " and " + plural.Count(len(all)-most, "other", "others")
		}
		words = append(words, x.String())
	}
	return strings.Join(words, ", ")
}
