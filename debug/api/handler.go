package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kube-proxy/debug/inspect"
)

// Header is in each answer, with the version of the API of the path. An answer without it is from
// another program.
const Header = "Kube-Proxy-Admin"

// version is the version of the interface.
const version = "1"

const (
	// maxComputed is the number of queries computed at once: the other CPUs are free to serve
	// packets.
	maxComputed = 2
	// maxAnswers is how many answers are in memory at once, until they are read or writeWait is
	// over.
	maxAnswers = 4
	// writeWait is how long the client may take to read an answer, or a piece of a long one.
	writeWait = 10 * time.Second
	// maxLong is the number of simultaneous long queries (comparing all of the kernel, waiting for
	// changes, watching): the other connections are for short ones.
	maxLong = maxConnections * 3 / 4
	// maxWait is how long a question for changes waits for some.
	maxWait = 60 * time.Second
	// inspectEvery is how often such a query looks for changes: to wake it would cost the engines.
	inspectEvery = 100 * time.Millisecond
	// piece is how much of a long answer is written at once, in bytes.
	piece = 64 << 10
)

// Handler answers questions. Make one with [NewHandler].
type Handler struct {
	about    *inspect.Inspector
	mux      http.ServeMux
	answers  chan struct{}
	computed chan struct{}
	long     chan struct{}
}

// NewHandler returns the handler of queries about a proxy.
func NewHandler(about *inspect.Inspector) *Handler {
	h := &Handler{about: about, answers: make(chan struct{}, maxAnswers), computed: make(chan struct{}, maxComputed),
		long: make(chan struct{}, maxLong)}
	h.answer("trace", []string{"from", "pod", "port", "in", "to"}, true, func(ctx context.Context, q url.Values) (any,
		error) {
		return about.Trace(ctx, inspect.TraceQuery{From: q.Get("from"), Pod: q.Get("pod"), Port: q.Get("port"),
			In: q.Get("in"), To: q.Get("to")})
	})
	h.answer("service", []string{"name", "paths"}, true, func(ctx context.Context, q url.Values) (any, error) {
		if q.Get("paths") != "" {
			return about.Why(ctx, q.Get("name"))
		}
		return about.Service(q.Get("name"))
	})
	h.answer("probe", []string{"name"}, false, func(ctx context.Context, q url.Values) (any, error) {
		if err := h.linger(); err != nil {
			return nil, err
		}
		defer leave(h.long)
		return about.Probe(ctx, q.Get("name"))
	})
	h.answer("status", nil, true, func(context.Context, url.Values) (any, error) { return about.Status(), nil })
	h.answer("attention", nil, true, func(context.Context, url.Values) (any, error) { return about.Attention(), nil })
	h.answer("configuration", nil, true, func(context.Context, url.Values) (any, error) {
		return about.Configuration()
	})
	h.answer("diff", nil, false, func(ctx context.Context, _ url.Values) (any, error) {
		if err := h.linger(); err != nil {
			return nil, err
		}
		defer leave(h.long)
		return about.Diff(ctx)
	})
	h.answer("events", []string{"after", "wait", "service"}, false, h.events)
	h.live()
	h.stream("table", []string{"filter"}, "frontends", func(ctx context.Context, q url.Values,
		each func(any) error) (any, error) {
		var failed error
		err := about.Table(ctx, q.Get("filter"), func(frontends []inspect.Frontend) bool {
			for _, f := range frontends {
				if failed == nil {
					failed = each(f)
				}
			}
			return failed == nil
		})
		return nil, errors.Join(err, failed)
	})
	h.stream("services", nil, "services", func(_ context.Context, _ url.Values, each func(any) error) (any, error) {
		for _, n := range about.Names() {
			if err := each(n.String()); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	h.stream("states", []string{"after", "wait"}, "services", func(_ context.Context, q url.Values,
		each func(any) error) (any, error) {
		state := func(s inspect.Service) error { return each(s) }
		if q.Get("after") == "" {
			return about.Services(state)
		}
		after, _, err := since(q)
		if err != nil {
			return nil, err
		}
		return about.ServicesSince(after, state)
	})
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(Header, version)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, pattern := h.mux.Handler(r); pattern == "" {
		fail(w, http.StatusNotFound, inspect.Problemf(inspect.Bad, "unknown query %q (API v%s)",
			inspect.Cut(r.URL.Path), version))
		return
	}
	h.mux.ServeHTTP(w, r)
}

// answer adds a question whose answer is put together as a whole. computed: it only takes the
// processor's time.
func (h *Handler) answer(name string, params []string, computed bool, f func(context.Context, url.Values) (any,
	error)) {
	h.mux.HandleFunc("/v1/"+name, func(w http.ResponseWriter, r *http.Request) {
		q, ok := query(w, r, params)
		if !ok {
			return
		}
		ctx := r.Context()
		if computed {
			if !take(ctx, h.answers) {
				return
			}
			defer leave(h.answers)
			if !take(ctx, h.computed) {
				return
			}
		}
		out, err := f(ctx, q)
		var body bytes.Buffer
		if err == nil {
			err = json.NewEncoder(&body).Encode(out)
		}
		if computed {
			leave(h.computed)
		}
		if err != nil {
			fail(w, status(err), err)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWait))
		_, _ = w.Write(body.Bytes()) // the client has closed the connection
	})
}

// stream adds a query with a list of any length as its answer, {"node": "n1", "name": [...]},
// followed by the fields of f's result.
func (h *Handler) stream(name string, params []string, list string, f func(context.Context, url.Values,
	func(any) error) (any, error)) {
	h.mux.HandleFunc("/v1/"+name, func(w http.ResponseWriter, r *http.Request) {
		q, ok := query(w, r, params)
		if !ok {
			return
		}
		if err := h.wait(r.Context(), q, func(after uint64) bool { return h.about.Newest() != after }); err != nil {
			fail(w, status(err), err)
			return
		}
		if !take(r.Context(), h.computed) {
			return
		}
		held := true
		defer func() {
			if held {
				leave(h.computed)
			}
		}()
		var body bytes.Buffer
		sent := false
		flush := func() error {
			leave(h.computed)
			held = false
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeWait))
			if _, err := w.Write(body.Bytes()); err != nil {
				return err
			}
			sent = true
			body.Reset()
			if held = take(r.Context(), h.computed); !held {
				return r.Context().Err()
			}
			return nil
		}
		encoder := json.NewEncoder(&body)
		node, _ := json.Marshal(h.about.Node()) // a string can always be written
		fmt.Fprintf(&body, "{\"node\":%s,%q:[", node, list)
		n := 0
		more, err := f(r.Context(), q, func(v any) error {
			if n++; n > 1 {
				body.WriteByte(',')
			}
			if err := encoder.Encode(v); err != nil {
				return err
			}
			if body.Len() < piece {
				return nil
			}
			return flush()
		})
		switch {
		case err == nil:
			body.WriteByte(']')
			if fields, _ := json.Marshal(more); more != nil { // numbers and strings can always be written
				body.WriteString("," + string(fields[1:]))
			} else {
				body.WriteByte('}')
			}
			_ = flush() // the client has closed the connection
		case !sent:
			fail(w, status(err), err)
		default:
			panic(http.ErrAbortHandler) // the answer is incomplete, and must not look complete
		}
	})
}

// live adds the query that is answered every second, a line each, until the client closes the
// connection.
func (h *Handler) live() {
	h.mux.HandleFunc("/v1/top", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := query(w, r, nil); !ok {
			return
		}
		if err := h.linger(); err != nil {
			fail(w, status(err), err)
			return
		}
		defer leave(h.long)
		c := http.NewResponseController(w)
		sent := false
		err := h.about.Top(r.Context(), func(t *inspect.Top) bool {
			_ = c.SetWriteDeadline(time.Now().Add(writeWait))
			sent = true
			return json.NewEncoder(w).Encode(t) == nil && c.Flush() == nil
		})
		if err != nil && !sent {
			fail(w, status(err), err)
		}
	})
}

// events returns the changes after a number, of one Service or of all, and can wait for the first.
// A client that waits may name, with its namespace, a Service that does not exist yet, or no
// longer; without waiting that is an error.
func (h *Handler) events(ctx context.Context, q url.Values) (any, error) {
	if h.about.Offline() {
		return nil, inspect.Problemf(inspect.Unavailable, "no changes offline: query a running proxy")
	}
	changes := h.about.Changes
	if said := q.Get("service"); said != "" {
		name, err := h.about.Changed(said)
		if p := (*inspect.Problem)(nil); err != nil && (q.Get("wait") == "" || name.Namespace == "" ||
			!errors.As(err, &p) || p.Kind != inspect.Unknown) {
			return nil, err
		}
		changes = func(after uint64) inspect.Changes { return h.about.Changes(after).Of(name) }
	}
	var out inspect.Changes
	err := h.wait(ctx, q, func(after uint64) bool {
		out = changes(max(after, out.Newest)) // changes of others need not be read again
		return len(out.Changes) > 0
	})
	return out, err
}

// since reads the number of a change, and how long to wait for one after it.
func since(q url.Values) (after uint64, wait time.Duration, err error) {
	if s := q.Get("after"); s != "" {
		if after, err = strconv.ParseUint(s, 10, 64); err != nil {
			return 0, 0, inspect.Problemf(inspect.Bad, "after=%s: want a number", inspect.Cut(s))
		}
	}
	if s := q.Get("wait"); s != "" {
		if wait, err = time.ParseDuration(s); err != nil || wait < 0 || wait > maxWait {
			return 0, 0, inspect.Problemf(inspect.Bad, "wait=%s: want a duration up to %s", inspect.Cut(s), maxWait)
		}
	}
	return after, wait, nil
}

// wait returns when there is something after the number that q has, or q waits no longer. It calls
// is at least once.
func (h *Handler) wait(ctx context.Context, q url.Values, is func(after uint64) bool) error {
	after, wait, err := since(q)
	if err != nil || is(after) || wait == 0 {
		return err
	}
	if err := h.linger(); err != nil {
		return err
	}
	defer leave(h.long)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	look := time.NewTicker(inspectEvery)
	defer look.Stop()
	for !is(after) {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
	return nil
}

// linger takes a place for a long query, and returns an error if none is free.
func (h *Handler) linger() error {
	select {
	case h.long <- struct{}{}:
		return nil
	default:
		return inspect.Problemf(inspect.Unavailable,
			"%d long queries are already running: end some of them (diff, top, events --watch), then retry", maxLong)
	}
}

// query parses the query string, which may have only these parameters, each once.
func query(w http.ResponseWriter, r *http.Request, params []string) (url.Values, bool) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // the body of a request is not read to its end
		w.Header().Set("Connection", "close")
		fail(w, http.StatusBadRequest, inspect.Problemf(inspect.Bad, "a query has no body"))
		return nil, false
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		fail(w, http.StatusMethodNotAllowed,
			inspect.Problemf(inspect.Bad, "only GET is allowed: queries are read-only"))
		return nil, false
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, http.StatusBadRequest,
			inspect.Problemf(inspect.Bad, "invalid query string: %s", inspect.Cut(err.Error())))
		return nil, false
	}
	for name, values := range q {
		if !slices.Contains(params, name) || len(values) > 1 {
			takes := "takes none"
			if len(params) > 0 {
				takes = "takes " + strings.Join(params, ", ") + ", each once"
			}
			fail(w, http.StatusBadRequest, inspect.Problemf(inspect.Bad, "parameter %q: %s %s", inspect.Cut(name),
				r.URL.Path, takes))
			return nil, false
		}
	}
	return q, true
}

// status is the HTTP status of a problem.
func status(err error) int {
	var p *inspect.Problem
	if !errors.As(err, &p) {
		return http.StatusInternalServerError
	}
	switch p.Kind {
	case inspect.Bad:
		return http.StatusBadRequest
	case inspect.Unknown:
		return http.StatusNotFound
	case inspect.Ambiguous:
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}

func fail(w http.ResponseWriter, code int, err error) {
	var p *inspect.Problem
	if !errors.As(err, &p) {
		p = inspect.Problemf(inspect.Unavailable, "%v", err)
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(p) // the client has closed the connection
}

// take reports whether it has a place; not if ctx has ended.
func take(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func leave(places chan struct{}) { <-places }
