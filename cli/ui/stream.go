package ui

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"kube-proxy/debug/inspect"
)

const (
	// pause is the minimum time between two messages to a page.
	pause = 250 * time.Millisecond
	// wait is how long one query waits for changes.
	wait = time.Minute
	// maxPages is the number of pages that may follow changes at a time. Each has an open query at
	// the proxy, which also needs room for other clients.
	maxPages = 16
)

// delta is a set of changes.
type delta struct {
	Rev   uint64   `json:"rev"`
	Some  [][]any  `json:"some,omitempty"`  // changed Services
	Gone  []string `json:"gone,omitempty"`  // names of deleted Services
	Again bool     `json:"again,omitempty"` // too many changes: load everything again
	Head  head     `json:"head"`
}

// events sends changes to one page until the page is closed or the proxy does not answer; then the
// browser reconnects.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	select {
	case h.open <- struct{}{}:
		defer func() { <-h.open }()
	default:
		plain(w, http.StatusServiceUnavailable, fmt.Sprintf("%d pages follow the changes already: close one\n",
			maxPages))
		return
	}
	got, err := parameters(r.URL.RawQuery, "since")
	after := cmp.Or(r.Header.Get("Last-Event-ID"), got["since"], "0") // Last-Event-ID is set if the browser reconnects
	var d delta
	if err == nil {
		d, err = h.delta(r.Context(), after, 0)
	}
	if err != nil {
		plain(w, codeOf(err), err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(format string, args ...any) bool {
		_, err := fmt.Fprintf(w, format, args...)
		return err == nil && http.NewResponseController(w).Flush() == nil
	}
	if r.Method == http.MethodHead || !send("retry: 2000\n: live\n\n") {
		return
	}
	for ; err == nil; d, err = h.delta(r.Context(), after, wait) {
		now := fmt.Sprint(d.Rev)
		if text, _ := json.Marshal(d); now != after && !send("id: %s\nevent: change\ndata: %s\n\n", now, text) {
			return
		}
		after = now
		select {
		case <-r.Context().Done():
			return
		case <-time.After(pause):
		}
	}
}

// delta waits for changes after a given one.
func (h *Handler) delta(ctx context.Context, after string, wait time.Duration) (delta, error) {
	var s states
	var now inspect.Status
	err := h.client.Get(ctx, "states", url.Values{"after": {after}, "wait": {wait.String()}}, &s)
	if err == nil {
		err = h.client.Get(ctx, "status", nil, &now)
	}
	d := delta{Rev: s.Newest, Gone: s.Gone, Again: s.Again, Head: headOf(now)}
	for k := range s.Services {
		i := itemOf(&s.Services[k])
		d.Some = append(d.Some, i.row())
	}
	return d, err
}
