package ui

import (
	"errors"
	"net/http"
	"strconv"
	"time"
)

// writeWait is how long a page may take to read one message, after what the kernel keeps for it is full.
const writeWait = 10 * time.Second

// events tells one page what changes, until it is closed.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	got, err := parameters(r.URL.RawQuery, "since")
	var since uint64
	if err == nil && got["since"] != "" {
		if since, err = strconv.ParseUint(got["since"], 10, 64); err != nil {
			err = bad("since", got["since"], "the number of a change")
		}
	}
	if last := r.Header.Get("Last-Event-ID"); err == nil && last != "" { // the browser has come back
		if since, err = strconv.ParseUint(last, 10, 64); err != nil {
			err = bad("Last-Event-ID", last, "the number of a change")
		}
	}
	switch {
	case err != nil:
		plain(w, http.StatusBadRequest, err.Error()+"\n")
		return
	case h.hub.ring == nil:
		plain(w, http.StatusNotFound, "nothing notes changes here\n")
		return
	case r.Method == http.MethodHead:
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	s, err := h.hub.join(since)
	if full := errFull(0); errors.As(err, &full) {
		w.Header().Set("Retry-After", "30")
		plain(w, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	defer h.hub.leave(s)
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	write := func(text []byte) bool {
		c := http.NewResponseController(w)
		if c.SetWriteDeadline(time.Now().Add(writeWait)) != nil {
			return false
		}
		if _, err := w.Write(text); err != nil || c.Flush() != nil {
			return false
		}
		return c.SetWriteDeadline(time.Time{}) == nil
	}
	if !write([]byte("retry: 2000\n: live\n\n")) {
		return
	}
	for {
		if m, ok := h.hub.caughtUp(s); ok && !write(m.text) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.cut:
			return
		case m := <-s.messages:
			if !write(m.text) {
				return
			}
		}
	}
}
