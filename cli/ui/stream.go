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
	// pause is the least time between two messages to a page.
	pause = 250 * time.Millisecond
	// wait is how long one question waits for changes.
	wait = time.Minute
	// maxPages is how many pages are told of changes at a time. Each has a question at the proxy,
	// which leaves others theirs.
	maxPages = 16
)

// delta is what changed.
type delta struct {
	Rev   uint64   `json:"rev"`
	Some  [][]any  `json:"some,omitempty"`  // Services as they are now
	Gone  []string `json:"gone,omitempty"`  // names of those that are not any more
	Again bool     `json:"again,omitempty"` // so much that all is to be loaded again
	Head  head     `json:"head"`
}

// events tells one page what changes, until it is closed or the proxy does not answer; then the
// browser comes back.
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
	after := cmp.Or(r.Header.Get("Last-Event-ID"), got["since"], "0") // the first where the browser has come back
	var d delta
	if err == nil {
		d, err = h.delta(r.Context(), after, 0)
	}
	if err != nil {
		plain(w, codeOf(err), err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	tell := func(format string, args ...any) bool {
		_, err := fmt.Fprintf(w, format, args...)
		return err == nil && http.NewResponseController(w).Flush() == nil
	}
	if r.Method == http.MethodHead || !tell("retry: 2000\n: live\n\n") {
		return
	}
	for ; err == nil; d, err = h.delta(r.Context(), after, wait) {
		now := fmt.Sprint(d.Rev)
		if text, _ := json.Marshal(d); now != after && !tell("id: %s\nevent: change\ndata: %s\n\n", now, text) {
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

// delta asks what came after a change, and waits for something.
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
