package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/scenario"
)

// sink answers packets that node1 forwards.
const sink = netlab.Sink

// answer is the result of one connection: the server, its port, and the source that it saw.
type answer struct {
	server string
	port   uint16
	seen   netip.Addr
	local  netip.Addr // the sender's own address
}

// tally sums the results of the connections of one row.
type tally struct {
	answers map[answer]int
	refused int
	silent  int
	// failed counts other results; err is the first.
	failed int
	err    error
}

// add notes one connection.
func (t *tally) add(a answer, err error) {
	switch {
	case err == nil:
		if t.answers == nil {
			t.answers = map[answer]int{}
		}
		t.answers[a]++
	case errors.Is(err, netlab.ErrRefused):
		t.refused++
	case errors.Is(err, netlab.ErrTimeout):
		t.silent++
	default:
		t.failed++
		if t.err == nil {
			t.err = err
		}
	}
}

// sent is the number of connections.
func (t tally) sent() int { return t.answered() + t.refused + t.silent + t.failed }

func (t tally) answered() int {
	n := 0
	for _, count := range t.answers {
		n += count
	}
	return n
}

// who lists the servers, backends first: "pod1 34% pod2 66%", or only "refused".
func (t tally) who() string {
	counts := map[string]int{}
	for a, n := range t.answers {
		counts[a.server] += n
	}
	names := slices.Sorted(maps.Keys(counts))
	for _, end := range []struct {
		name string
		n    int
	}{{"refused", t.refused}, {"no answer", t.silent}, {"failed", t.failed}} {
		counts[end.name] = end.n
		if end.n > 0 {
			names = append(names, end.name)
		}
	}
	if len(names) == 1 && t.answered() == 0 {
		return names[0]
	}
	var words []string
	for _, name := range names {
		words = append(words, fmt.Sprintf("%s %.0f%%", name, float64(counts[name])*100/float64(t.sent())))
	}
	return strings.Join(words, "  ")
}

// sources lists the sources that the backends saw: "pod3 10.1.1.13", separated by commas.
func (t tally) sources() string {
	seen := map[netip.Addr]bool{}
	for a := range t.answers {
		seen[a.seen] = true
	}
	var words []string
	for addr := range seen {
		words = append(words, strings.TrimSpace(netlab.Owner(addr)+" "+addr.String()))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// comparedTo describes the result before; the sources only if they differ.
func (t tally) comparedTo(before tally) string {
	if s := before.sources(); s != "" && s != t.sources() {
		return before.who() + ", which saw " + s
	}
	return before.who()
}

// met reports whether a host answered.
func (t tally) met(host string) bool {
	for a := range t.answers {
		if a.server == host {
			return true
		}
	}
	return false
}

// outcome is the result of the row without the counts: two tallies of the same outcome look the
// same to a user.
func (t tally) outcome() string {
	var words []string
	for a := range t.answers {
		words = append(words, fmt.Sprintf("%s:%d saw %s", a.server, a.port, a.seen))
	}
	slices.Sort(words)
	for _, end := range []struct {
		n    int
		word string
	}{{t.refused, "refused"}, {t.silent, "no answer"}, {t.failed, "failed"}} {
		if end.n > 0 {
			words = append(words, end.word)
		}
	}
	return strings.Join(words, ", ")
}

// check returns the unexpected parts of the tally, nothing if all is as wanted.
func check(want scenario.Outcome, t tally) []string {
	if t.sent() == 0 {
		return []string{"nothing was sent"}
	}
	var wrong []string
	if t.failed > 0 {
		wrong = append(wrong, fmt.Sprintf("%d connections failed: %v", t.failed, t.err))
	}
	ends := []struct {
		verdict scenario.Verdict
		n       int
		word    string
	}{
		{scenario.Answered, t.answered(), "answered"}, {scenario.Refused, t.refused, "refused"},
		{scenario.Dropped, t.silent, "without an answer"},
	}
	for _, end := range ends {
		if want.Verdict != end.verdict && end.n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d of %d connections were %s", end.n, t.sent(), end.word))
		}
	}
	if want.Verdict != scenario.Answered || t.answered() == 0 {
		return wrong
	}
	return append(wrong, checkAnswers(want, t)...)
}

func checkAnswers(want scenario.Outcome, t tally) []string {
	var wrong []string
	met := map[string]bool{}
	for a := range t.answers {
		met[a.server] = true
		i := slices.IndexFunc(want.Backends, func(b scenario.Backend) bool { return b.Host == a.server })
		if i < 0 {
			wrong = append(wrong, a.server+" answered")
			continue
		}
		b := want.Backends[i]
		if b.Port != 0 && b.Port != a.port {
			wrong = append(wrong, fmt.Sprintf("%s was reached at port %d, not %d", a.server, a.port, b.Port))
		}
		if !sourceIs(b.From, a) {
			wrong = append(wrong, fmt.Sprintf("%s saw %s", a.server, a.seen))
		}
	}
	if want.Sticky && len(met) > 1 {
		wrong = append(wrong, fmt.Sprintf("met %d pods, not one", len(met)))
	}
	for _, b := range want.Backends {
		if !want.Sticky && !met[b.Host] {
			wrong = append(wrong, b.Host+" did not answer")
		}
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

// sourceIs reports whether the backend saw the expected source.
func sourceIs(want scenario.Origin, a answer) bool {
	switch {
	case want.Host == scenario.Same:
		return a.seen == a.local
	case want.Host != "":
		return netlab.Owner(a.seen) == want.Host
	case want.Addr.Of != "":
		return false // loadShop has refused it
	case !want.Addr.IsZero():
		return a.seen == want.Addr.V4 || a.seen == want.Addr.V6
	}
	return true
}
