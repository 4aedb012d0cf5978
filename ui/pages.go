package ui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"kube-proxy/inspect"
	"kube-proxy/trace"
)

// frame is what every page has around its content.
type frame struct {
	Title, Tab string
	Head       head
	Status     inspect.Status
	Now        time.Time
	Live       bool   // changes are told
	Rev        uint64 // the newest change that the page surely has
	Data       any
}

// render answers with a page.
func (h *Handler) render(w http.ResponseWriter, r *http.Request, code int, name, title string, data any) {
	h.renderAt(w, r, code, name, title, data, h.rev())
}

// rev is the number of the newest change.
func (h *Handler) rev() uint64 {
	rev, _ := h.hub.ring.Counts()
	return rev
}

func (h *Handler) renderAt(w http.ResponseWriter, r *http.Request, code int, name, title string, data any, rev uint64) {
	s := h.source.Status()
	f := frame{Title: title, Tab: name, Head: headOf(s), Status: s, Now: h.now(), Live: h.hub.ring != nil, Rev: rev, Data: data}
	var b bytes.Buffer
	if err := h.pages.ExecuteTemplate(&b, name+".html", f); err != nil {
		plain(w, http.StatusInternalServerError, "the page cannot be made: "+err.Error()+"\n")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	w.Write(b.Bytes()) // nobody is left to tell of an error
}

// listPage is the table of Services.
type listPage struct {
	listQuery
	Items       []item // of this page
	First       int    // number of the first one, from 1
	Found, All  int
	Problems    int
	Last        int // page
	Prev, Next  string
	ShowAll     string
	ShowTrouble string
}

// services is the page with the table of Services.
func (h *Handler) services(w http.ResponseWriter, r *http.Request) {
	q, err := parseList(r.URL.RawQuery)
	if err != nil {
		h.failed(w, r, err)
		return
	}
	all, rev := h.cache.services()
	found := q.pick(all)
	p := listPage{listQuery: q, Found: len(found), All: len(all), Last: max(1, (len(found)+perPage-1)/perPage)}
	if q.Page > p.Last {
		h.failed(w, r, bad("page", r.URL.Query().Get("page"), "a number from 1 to "+count(p.Last)))
		return
	}
	from := (q.Page - 1) * perPage
	p.Items, p.First = found[from:min(from+perPage, len(found))], from+1
	for i := range all {
		if all[i].Level != fine {
			p.Problems++
		}
	}
	if q.Page > 1 {
		p.Prev = q.link(q.Page - 1)
	}
	if q.Page < p.Last {
		p.Next = q.link(q.Page + 1)
	}
	any, trouble := q, q
	any.Show, trouble.Show = "all", "problems"
	p.ShowAll, p.ShowTrouble = any.link(1), trouble.link(1)
	h.renderAt(w, r, http.StatusOK, "services", "Services", p, rev)
}

// servicePage is one Service.
type servicePage struct {
	*inspect.Detail
	Full    string // "ns/name"
	Level   level
	Policy  string
	Picture picture
	Changes []change
}

// shownLines is how many endpoints, and rows, of a family the page of a Service lists.
const shownLines = 500

// lately is how many changes of a Service its page has.
const lately = 10

// service is the page of one Service.
func (h *Handler) service(w http.ResponseWriter, r *http.Request) {
	got, err := parameters(r.URL.RawQuery, "name")
	if err == nil && got["name"] == "" {
		err = bad("name", "", "a Service, as namespace/name")
	}
	if err != nil {
		h.failed(w, r, err)
		return
	}
	rev := h.rev()
	d, err := h.source.Service(got["name"])
	if err != nil {
		h.unanswered(w, r, err)
		return
	}
	p := servicePage{Detail: d, Full: d.Namespace + "/" + d.Name, Level: levelOf(d.State), Policy: policyOf(&d.Service), Picture: draw(d)} // of all endpoints
	for k := range d.Families {
		f := &d.Families[k]
		f.MoreEndpoints += max(0, len(f.Endpoints)-shownLines)
		f.Endpoints = f.Endpoints[:min(len(f.Endpoints), shownLines)]
		f.Rows = f.Rows[:min(len(f.Rows), shownLines)]
	}
	for _, c := range changesOf(h.source.Changes(0), func(c *inspect.Change) bool { return c.Service == p.Full }) {
		if len(p.Changes) < lately {
			p.Changes = append(p.Changes, c)
		}
	}
	h.renderAt(w, r, http.StatusOK, "service", p.Full, p, rev)
}

// unanswered is the page for a question that inspect has no answer to.
func (h *Handler) unanswered(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	text := err.Error()
	if p := (*inspect.Problem)(nil); errors.As(err, &p) {
		switch p.Kind {
		case inspect.Bad, inspect.Ambiguous:
			code = http.StatusBadRequest
		case inspect.Unknown:
			code = http.StatusNotFound
		case inspect.Unavailable:
			code = http.StatusServiceUnavailable
		}
		if len(p.Candidates) > 0 && !strings.Contains(text, p.Candidates[0]) {
			text += "; there are " + strings.Join(p.Candidates, ", ")
		}
	}
	h.fail(w, r, code, text)
}

// changesPage is what changed lately.
type changesPage struct {
	Plot    plot
	Changes []change
	Gone    uint64
	More    int // that are remembered and not shown
}

// shownChanges is how many changes the page lists.
const shownChanges = 200

// changes is the page with what changed lately.
func (h *Handler) changes(w http.ResponseWriter, r *http.Request) {
	if _, err := parameters(r.URL.RawQuery); err != nil {
		h.failed(w, r, err)
		return
	}
	rev, told := h.rev(), h.source.Changes(0)
	all := changesOf(told, func(*inspect.Change) bool { return true })
	p := changesPage{Plot: plotOf(all), Changes: all[:min(len(all), shownChanges)], Gone: told.Gone}
	p.More = len(all) - len(p.Changes)
	h.renderAt(w, r, http.StatusOK, "changes", "Changes", p, rev)
}

// tracePage is the question what becomes of a packet.
type tracePage struct {
	From, To, Proto string
	Asked           bool
	Answer          *inspect.TraceAnswer
	Problem         string
}

// trace is the page that answers what becomes of a packet.
func (h *Handler) trace(w http.ResponseWriter, r *http.Request) {
	got, err := parameters(r.URL.RawQuery, "from", "to", "proto")
	if err != nil {
		h.failed(w, r, err)
		return
	}
	p := tracePage{From: strings.TrimSpace(got["from"]), To: strings.TrimSpace(got["to"]), Proto: got["proto"]}
	p.Asked = p.From != "" || p.To != ""
	code := http.StatusOK
	if p.Asked {
		if code, err = h.ask(r.Context(), &p); err != nil {
			p.Problem = err.Error()
		}
	}
	h.render(w, r, code, "trace", "Trace", p)
}

// ask has p answered.
func (h *Handler) ask(ctx context.Context, p *tracePage) (code int, err error) {
	switch {
	case p.From == "":
		return http.StatusBadRequest, errors.New("from is empty: want the address that the packet comes from")
	case p.To == "":
		return http.StatusBadRequest, errors.New("to is empty: want an address and a port, or a Service")
	case p.Proto != "" && p.Proto != "tcp" && p.Proto != "udp" && p.Proto != "sctp":
		return http.StatusBadRequest, bad("proto", p.Proto, "tcp, udp or sctp")
	}
	p.Answer, err = h.source.Trace(ctx, question(p))
	if problem := (*inspect.Problem)(nil); errors.As(err, &problem) && problem.Kind != inspect.Unavailable {
		return http.StatusBadRequest, err
	} else if err != nil {
		return http.StatusServiceUnavailable, err
	}
	return http.StatusOK, nil
}

// question is what p asks.
func question(p *tracePage) inspect.TraceQuery {
	to := p.To
	if p.Proto != "" && !strings.Contains(to, "/"+p.Proto) {
		to += "/" + p.Proto
	}
	return inspect.TraceQuery{From: p.From, To: to}
}

// nodePage is what is known of the node, of the mode, and whether the kernel holds what it should.
type nodePage struct {
	Compared bool
	Diff     *inspect.Diff
	Problem  string
	Took     time.Duration
	Runs     []run // of the conformance suite, of this mode
}

// node is the page about node, mode and drift. The kernel is compared when that is asked for: it costs something.
func (h *Handler) node(w http.ResponseWriter, r *http.Request) {
	got, err := parameters(r.URL.RawQuery, "compare")
	if err == nil && got["compare"] != "" && got["compare"] != "now" {
		err = bad("compare", got["compare"], "now")
	}
	if err != nil {
		h.failed(w, r, err)
		return
	}
	p := nodePage{Compared: got["compare"] == "now", Runs: runsOf(h.source.Status().Mode)}
	if p.Compared {
		begun := h.now()
		if p.Diff, err = h.source.Diff(r.Context()); err != nil {
			p.Problem = err.Error()
		}
		p.Took = h.now().Sub(begun)
	}
	h.render(w, r, http.StatusOK, "node", "Node", p)
}

// traceLink asks about the address of a row, from a client outside; "" where no packet has it.
func traceLink(key string) string {
	if strings.HasPrefix(key, "nodeport:") {
		return "/ui/trace?" + url.Values{"from": {"node"}, "to": {key}}.Encode()
	}
	at, proto, _ := strings.Cut(key, "/")
	return "/ui/trace?" + url.Values{"from": {"node"}, "to": {at}, "proto": {proto}}.Encode()
}

// shares writes backends with their parts of new connections.
func shares(all []trace.Backend) string {
	list := make([]string, 0, len(all))
	for _, b := range all {
		list = append(list, b.Address.String())
	}
	return strings.Join(list, ", ")
}
