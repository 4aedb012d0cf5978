package trace

import (
	"fmt"
	"net/netip"
	"strings"

	"kube-proxy/internal/plural"
)

// say adds a sentence to the reasons.
func (q *question) say(format string, args ...any) {
	q.Why = append(q.Why, fmt.Sprintf(format, args...))
}

// most is how many things of a kind a sentence names.
const most = 5

// prefixes is a list in a sentence.
func prefixes(ps []netip.Prefix) string {
	if len(ps) == 0 {
		return "none"
	}
	var words []string
	for i, p := range ps {
		if i == most {
			return strings.Join(words, ", ") + " and " + plural.Count(len(ps)-most, "other", "others")
		}
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}
