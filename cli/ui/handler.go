package ui

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"strings"
	"time"

	"kube-proxy/debug/api"
	"kube-proxy/debug/inspect"
)

// timeout limits the time for the answer to one request.
const timeout = 20 * time.Second

// Handler serves the page. Make one with [New].
type Handler struct {
	client *api.Client
	token  string
	list   list
	meter  meter
	open   chan struct{} // has a value for each page that follows changes
	assets map[string]asset
	pages  *template.Template
	routes map[string]http.HandlerFunc // by the path after Path
}

// New returns a Handler for the proxy at the other end of a client.
func New(client *api.Client) *Handler {
	h := &Handler{
		client: client, token: rand.Text(), list: list{client: client}, meter: meter{client: client},
		open: make(chan struct{}, maxPages), assets: assets(), pages: templates(),
	}
	h.routes = map[string]http.HandlerFunc{
		"":              h.page("services", h.services),
		"service":       h.page("service", h.service),
		"changes":       h.page("changes", h.changes),
		"trace":         h.page("trace", h.trace),
		"node":          h.page("node", h.node),
		"services.json": h.listing,
		"events":        h.events,
		"traffic.json":  h.traffic,
	}
	return h
}

// Path is the path of the page, "/SECRET/". Every user of the machine can connect to a loopback
// address, so the Handler only answers requests with the secret of 130 random bits (TN-84). A page
// of another site, even with a DNS name that points here, can neither guess nor read it.
func (h *Handler) Path() string { return "/" + h.token + "/" }

// ServeHTTP answers below [Handler.Path].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	token, name, below := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), []byte(h.token)) == 0 {
		plain(w, http.StatusForbidden, "this is not the address of the page: open the one that kube-proxy ui has "+
			"printed\n")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		plain(w, http.StatusMethodNotAllowed, "the status page is read-only: want GET or HEAD\n")
		return
	}
	a, static := h.assets[name]
	route := h.routes[name]
	switch {
	case !below:
		http.Redirect(w, r, h.Path(), http.StatusPermanentRedirect)
	case static:
		a.serve(w, r)
	case route != nil:
		route(w, r)
	default:
		plain(w, http.StatusNotFound, "there is no such page\n")
	}
}

// contentPolicy allows pages to load only resources of this package.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types " +
	"'none'"

// secure sets the headers of every response.
func secure(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the URL has the secret
	h.Set("X-Frame-Options", "DENY")        // for browsers without frame-ancestors
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}

// worthZipping is the minimum size in bytes of a compressed response: it may pass through ssh or
// kubectl port-forward.
const worthZipping = 1400

// send writes a response with a body.
func send(w http.ResponseWriter, r *http.Request, code int, kind string, body []byte) {
	head := w.Header()
	head.Set("Content-Type", kind)
	head.Set("Vary", "Accept-Encoding")
	if len(body) >= worthZipping && takesGzip(r) {
		head.Set("Content-Encoding", "gzip")
		body = compressed(body)
	}
	head.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		w.Write(body) // after an error no client is left
	}
}

// takesGzip reports whether the client accepts gzip.
func takesGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		coding, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if coding == "gzip" && strings.TrimSpace(strings.ReplaceAll(params, " ", "")) != "q=0" {
			return true
		}
	}
	return false
}

func compressed(b []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // the level is valid
	z.Write(b)                                        // a buffer takes everything
	z.Close()
	return out.Bytes()
}

// plain writes a response with plain text.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	io.WriteString(w, text) // after an error no client is left
}

// codeOf returns the HTTP status for an error of a query string, or of the proxy.
func codeOf(err error) int {
	p := (*inspect.Problem)(nil)
	switch {
	case errors.As(err, new(badQuery)):
		return http.StatusBadRequest
	case !errors.As(err, &p) || p.Kind == inspect.Unavailable:
		return http.StatusServiceUnavailable
	case p.Kind == inspect.Unknown:
		return http.StatusNotFound
	}
	return http.StatusBadRequest
}

// listing sends all Services in one response.
func (h *Handler) listing(w http.ResponseWriter, r *http.Request) {
	if r.URL.RawQuery != "" {
		plain(w, http.StatusBadRequest, "services.json takes no parameters\n")
		return
	}
	ctx, end := context.WithTimeout(r.Context(), timeout)
	defer end()
	all, rev, err := h.list.items(ctx)
	if err != nil {
		plain(w, codeOf(err), err.Error()+"\n")
		return
	}
	l := listing{Rev: rev, Services: make([][]any, len(all))}
	for i := range all {
		l.Services[i] = all[i].row()
	}
	text, _ := json.Marshal(l) // strings and numbers can always be written
	send(w, r, http.StatusOK, "application/json", text)
}
