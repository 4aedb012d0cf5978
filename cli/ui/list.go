package ui

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
)

// listing is the initial content of the virtual list.
type listing struct {
	Rev      uint64  `json:"rev"` // the newest change that it includes
	Services [][]any `json:"services"`
}

// states are Services in the form of the proxy's response: all, or those that changed.
type states struct {
	Services []inspect.Service `json:"services"`
	inspect.Since
}

// list caches all Services as table rows. It queries all of them once, and then only changes since
// the last call. If there are so many changes that it must query all again, it spends at most a
// tenth of the time on that, and returns older rows meanwhile.
type list struct {
	client *api.Client

	mu  sync.Mutex
	all map[string]item // by name
	rev uint64          // the newest change that they include; 0 before the first query
	due time.Time       // no query for all before this time
}

// items returns all Services, sorted by name, and the number of the newest change that they
// include.
func (l *list) items(ctx context.Context) ([]item, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := states{Since: inspect.Since{Again: l.rev == 0}}
	var err error
	if !s.Again {
		err = l.client.Get(ctx, "states", url.Values{"after": {strconv.FormatUint(l.rev, 10)}}, &s)
	}
	switch begun := time.Now(); {
	case err != nil || !s.Again:
	case l.rev != 0 && begun.Before(l.due):
		s.Newest = l.rev
	default:
		s, l.all, l.rev = states{}, map[string]item{}, 0
		err = l.client.Get(ctx, "states", nil, &s)
		l.due = time.Now().Add(9 * time.Since(begun))
	}
	if err != nil {
		return nil, 0, err
	}
	for k := range s.Services {
		i := itemOf(&s.Services[k])
		l.all[i.Name] = i
	}
	for _, name := range s.Gone {
		delete(l.all, name)
	}
	l.rev = s.Newest
	return slices.SortedFunc(maps.Values(l.all), func(a, b item) int { return strings.Compare(a.Name, b.Name) }), l.rev,
		nil
}

const (
	// perPage is the number of rows on a page of the table.
	perPage = 100
	// maxQuery limits the search text, in bytes.
	maxQuery = 300
)

// listQuery selects rows of the table of Services.
type listQuery struct {
	Words string // words that a row must contain, in any order
	Show  string // "all", or "problems"
	Page  int    // from 1
}

// badQuery is an invalid query string. Its text has the parameter, value and expected form.
type badQuery struct{ text string }

func (b badQuery) Error() string { return b.text }

func bad(name, value, want string) error {
	return badQuery{fmt.Sprintf("%s=%s: want %s", name, short(value, 80), want)}
}

// parameters reads a query string that may have these parameters, each once.
func parameters(raw string, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badQuery{fmt.Sprintf("invalid query string: %s", short(err.Error(), 120))}
	}
	got := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !slices.Contains(names, name):
			return nil, badQuery{fmt.Sprintf("there is no parameter %q here: want %s", short(name, 40),
				strings.Join(names, ", "))}
		case len(values[name]) > 1:
			return nil, badQuery{fmt.Sprintf("%s is given %d times: want it once", name, len(values[name]))}
		case len(values[name][0]) > 2*maxQuery:
			return nil, badQuery{fmt.Sprintf("%s has %d bytes: want %d at most", name, len(values[name][0]),
				2*maxQuery)}
		}
		got[name] = values[name][0]
	}
	return got, nil
}

// parseList reads the query string of the table.
func parseList(raw string) (listQuery, error) {
	q := listQuery{Show: "all", Page: 1}
	got, err := parameters(raw, "q", "show", "page")
	if err != nil {
		return q, err
	}
	if q.Words = strings.TrimSpace(got["q"]); len(q.Words) > maxQuery {
		return q, bad("q", q.Words, fmt.Sprintf("%d bytes at most", maxQuery))
	}
	switch show := got["show"]; show {
	case "", "all":
	case "problems":
		q.Show = show
	default:
		return q, bad("show", show, "all or problems")
	}
	if page := got["page"]; page != "" {
		if q.Page, err = strconv.Atoi(page); err != nil || q.Page < 1 {
			return q, bad("page", page, "a number from 1")
		}
	}
	return q, nil
}

// link returns the query string for another page.
func (q listQuery) link(page int) string {
	v := url.Values{}
	if q.Words != "" {
		v.Set("q", q.Words)
	}
	if q.Show != "all" {
		v.Set("show", q.Show)
	}
	if page > 1 {
		v.Set("page", strconv.Itoa(page))
	}
	return "?" + v.Encode()
}

// pick returns the Services that q selects: problems first, then by name, as in static/list.js.
func (q listQuery) pick(all []item) []item {
	words := strings.Fields(strings.ToLower(q.Words))
	var some []item
	for i := range all {
		if q.Show == "problems" && all[i].Level == fine {
			continue
		}
		if contains(&all[i], words) {
			some = append(some, all[i])
		}
	}
	slices.SortStableFunc(some, func(a, b item) int { return int(b.Level) - int(a.Level) })
	return some
}

func contains(s *item, words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.ToLower(s.Name + " " + s.Type + " " + s.Addresses + " " + s.Policy + " " + s.Says)
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}
