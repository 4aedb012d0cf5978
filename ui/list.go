package ui

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	// perPage is how many rows a page of the table has.
	perPage = 100
	// maxQuery bounds what is searched for, in bytes.
	maxQuery = 300
)

// listQuery is what the table of Services is asked for.
type listQuery struct {
	Words string // what rows must contain, each word somewhere
	Show  string // "all", or "problems": those that are not fine
	Page  int    // from 1
}

// badQuery is a query string that cannot be answered; its text says which parameter, its value, and what is wanted.
type badQuery struct{ text string }

func (b badQuery) Error() string { return b.text }

func bad(name, value, want string) error {
	return badQuery{fmt.Sprintf("%s=%s: want %s", name, short(value, 80), want)}
}

// parameters reads a query string that may have these parameters, each once.
func parameters(raw string, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badQuery{fmt.Sprintf("the query string cannot be read: %s", short(err.Error(), 120))}
	}
	got := map[string]string{}
	for _, name := range sortedKeys(values) {
		switch {
		case !slices.Contains(names, name):
			return nil, badQuery{fmt.Sprintf("there is no parameter %q here: want %s", short(name, 40), strings.Join(names, ", "))}
		case len(values[name]) > 1:
			return nil, badQuery{fmt.Sprintf("%s is given %d times: want it once", name, len(values[name]))}
		case len(values[name][0]) > 2*maxQuery:
			return nil, badQuery{fmt.Sprintf("%s has %d bytes: want %d at most", name, len(values[name][0]), 2*maxQuery)}
		}
		got[name] = values[name][0]
	}
	return got, nil
}

func sortedKeys(v url.Values) []string {
	var keys []string
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
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

// pick returns the Services that q asks for: what is not fine comes first, then by name. static/list.js does the same.
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
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
