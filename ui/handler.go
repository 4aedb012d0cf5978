package ui

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"kube-proxy/changes"
)

const (
	// MostPages is how many pages may be told of changes at a time, where nobody says otherwise.
	MostPages = 1000
	// atOnce is how many questions are worked on at a time; the others wait.
	atOnce = 2
	// mostLong is how many answers of more than long bytes are in memory at a time that are not read yet.
	mostLong = 16
	long     = 64 << 10
	// patience is how long the answer to one question may take, and then how long who asked may take to read it.
	patience = 20 * time.Second
)

// Config says what a Handler shows.
type Config struct {
	// Source is asked; it must be set.
	Source Source
	// Changes is what the Source's changes are told by; nil where nothing notes them, so that pages are not live.
	Changes *changes.Ring
	// On says whether there is a page; nil means yes. It is asked for each request.
	On func() bool
	// Owner returns the user id of the program at the client's end of a connection; nil where the system
	// cannot tell. Only root, and the user of this process, see the page.
	Owner func(ctx context.Context, client, server netip.AddrPort) (uid uint32, err error)
	// Pages bounds the pages that are told of changes; 0 means [MostPages].
	Pages int
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Handler serves the page below /ui. Make one with [New].
type Handler struct {
	source Source
	owner  func(ctx context.Context, client, server netip.AddrPort) (uid uint32, err error)
	on     func() bool
	now    func() time.Time
	hub    hub
	cache  cache
	turns  chan struct{} // has a value for each question that is worked on
	longs  chan struct{} // has a value for each long answer that is being sent
	assets map[string]asset
	pages  *template.Template
	routes map[string]http.HandlerFunc
}

// New returns a Handler.
func New(cfg Config) *Handler {
	h := &Handler{source: cfg.Source, owner: cfg.Owner, on: cfg.On, now: cfg.Now, turns: make(chan struct{}, atOnce), longs: make(chan struct{}, mostLong), assets: assets()}
	if h.on == nil {
		h.on = func() bool { return true }
	}
	if h.now == nil {
		h.now = time.Now
	}
	h.hub = hub{source: cfg.Source, ring: cfg.Changes, most: cfg.Pages}
	if h.hub.most == 0 {
		h.hub.most = MostPages
	}
	h.cache.source, h.cache.ring = cfg.Source, cfg.Changes
	h.pages = templates()
	h.routes = map[string]http.HandlerFunc{
		"/ui/":              h.turn(h.services),
		"/ui/service":       h.turn(h.service),
		"/ui/changes":       h.turn(h.changes),
		"/ui/trace":         h.turn(h.trace),
		"/ui/node":          h.turn(h.node),
		"/ui/services.json": h.turn(h.listing),
		"/ui/events":        h.events,
	}
	return h
}

// CutStreams ends what pages are told of changes by; they come back by themselves if the server does. It is for the end of the
// server, which would wait for them.
func (h *Handler) CutStreams() { h.hub.cutAll() }

// ServeHTTP answers below /ui.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	why := refusal(r)
	if why == "" {
		why = h.stranger(r)
	}
	switch {
	case !h.on():
		plain(w, http.StatusNotFound, "there is no status page: it is turned off (--ui=false, or the field ui of the configuration)\n")
		return
	case why != "":
		plain(w, http.StatusForbidden, why+".\n\n"+fmt.Sprintf(howToReach, port(r)))
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		plain(w, http.StatusMethodNotAllowed, "the status page only shows: want GET or HEAD\n")
		return
	case r.URL.Path == "/ui":
		http.Redirect(w, r, "/ui/", http.StatusPermanentRedirect)
		return
	}
	if a, ok := h.assets[strings.TrimPrefix(r.URL.Path, "/ui/static/")]; ok && strings.HasPrefix(r.URL.Path, "/ui/static/") {
		a.serve(w, r)
		return
	}
	if route := h.routes[r.URL.Path]; route != nil {
		route(w, r)
		return
	}
	h.fail(w, r, http.StatusNotFound, "There is no such page.")
}

// turn has a question wait until few others are worked on, so that a crowd takes no more of the processors than two people would.
func (h *Handler) turn(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, end := context.WithTimeout(r.Context(), patience)
		defer end()
		select {
		case h.turns <- struct{}{}:
		case <-ctx.Done():
			tooMany(w)
			return
		}
		whole := &answered{header: w.Header(), code: http.StatusOK}
		func() {
			defer func() { <-h.turns }()
			answer(whole, r.WithContext(ctx))
		}()
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience)) // a recorder in a test has none
		if whole.body.Len() > long {
			select {
			case h.longs <- struct{}{}:
				defer func() { <-h.longs }()
			default:
				tooMany(w)
				return
			}
		}
		whole.send(w, r) // outside: who reads slowly keeps nobody waiting
	}
}

// tooMany tells to come back.
func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	plain(w, http.StatusServiceUnavailable, "too many ask at a time; try again\n")
}

// answered is an answer that is not sent yet.
type answered struct {
	header http.Header
	code   int
	body   bytes.Buffer
	ready  []byte // the body, if it is shared with other answers
}

func (a *answered) Header() http.Header         { return a.header }
func (a *answered) WriteHeader(code int)        { a.code = code }
func (a *answered) Write(b []byte) (int, error) { return a.body.Write(b) }

// worthZipping is from how many bytes on an answer is compressed.
const worthZipping = 1400

func (a *answered) send(w http.ResponseWriter, r *http.Request) {
	body := a.ready
	if body == nil {
		body = a.body.Bytes()
	}
	if a.header.Get("Content-Encoding") == "" && len(body) >= worthZipping && takesGzip(r) {
		a.header.Set("Content-Encoding", "gzip")
		body = compressed(body)
	}
	a.header.Set("Vary", "Accept-Encoding")
	a.header.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(a.code)
	if r.Method != http.MethodHead {
		w.Write(body) // nobody is left to tell of an error
	}
}

// takesGzip reports whether the client says that it understands gzip.
func takesGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		coding, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if coding == "gzip" && strings.TrimSpace(strings.ReplaceAll(params, " ", "")) != "q=0" {
			return true
		}
	}
	return false
}

// plain answers with a text.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	io.WriteString(w, text) // nobody is left to tell of an error
}

// listing sends all Services at once.
func (h *Handler) listing(w http.ResponseWriter, r *http.Request) {
	if r.URL.RawQuery != "" {
		plain(w, http.StatusBadRequest, "services.json takes no parameters\n")
		return
	}
	zip := takesGzip(r)
	text, err := h.cache.listing(zip)
	if err != nil {
		plain(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if zip {
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.(*answered).ready = text
}

// fail answers with a page that says what is wrong.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	h.render(w, r, code, "error", "Not answered", why)
}

// failed answers what err says: of a query string, or of us.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	if q := (badQuery{}); errors.As(err, &q) {
		code = http.StatusBadRequest
	}
	h.fail(w, r, code, err.Error())
}
