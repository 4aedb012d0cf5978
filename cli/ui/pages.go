package ui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"kube-proxy/debug/inspect"
)

// frame is the part of a page around its content.
type frame struct {
	Title, Tab string
	Head       head
	Status     inspect.Status
	Now        time.Time
	Live       bool   // the page follows changes
	Rev        uint64 // the newest change that the page includes
	Data       any
	code       int // of HTTP
}

// page writes a page. content fills it in after the status of the proxy is read.
func (h *Handler) page(tab string, content func(*http.Request, *frame) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, end := context.WithTimeout(r.Context(), timeout)
		defer end()
		name, f := tab, frame{Tab: tab, Head: head{alarm, "the proxy does not answer"}, Now: time.Now(), Live: true,
			code: http.StatusOK}
		err := h.client.Get(ctx, "status", nil, &f.Status)
		if err == nil {
			f.Head, f.Live, f.Rev = headOf(f.Status), !f.Status.Offline, f.Status.Newest
			err = content(r.WithContext(ctx), &f)
		}
		if err != nil {
			name, f.Title, f.Data, f.code = "error", "Not answered", inWordsOf(err), codeOf(err)
		}
		var b bytes.Buffer
		if err := h.pages.ExecuteTemplate(&b, name+".html", f); err != nil {
			plain(w, http.StatusInternalServerError, "cannot render the page: "+err.Error()+"\n")
			return
		}
		send(w, r, f.code, "text/html; charset=utf-8", b.Bytes())
	}
}

// inWordsOf returns the text of an error, with a suggestion of what the user may have meant.
func inWordsOf(err error) string {
	text := err.Error()
	if p := (*inspect.Problem)(nil); errors.As(err, &p) && len(p.Candidates) > 0 &&
		!strings.Contains(text, p.Candidates[0]) {
		text += "; there are " + strings.Join(p.Candidates, ", ")
	}
	return text
}

// listPage is the table of Services.
type listPage struct {
	listQuery
	Items      []item // of this page
	Found, All int
	Problems   int
	Last       int // page
	Prev, Next string
}

// services is the page with the table of Services.
func (h *Handler) services(r *http.Request, f *frame) error {
	q, err := parseList(r.URL.RawQuery)
	if err != nil {
		return err
	}
	all, rev, err := h.list.items(r.Context())
	if err != nil {
		return err
	}
	found := q.pick(all)
	p := listPage{listQuery: q, Found: len(found), All: len(all), Last: max(1, (len(found)+perPage-1)/perPage)}
	if q.Page > p.Last {
		return bad("page", r.URL.Query().Get("page"), "a number from 1 to "+count(p.Last))
	}
	from := (q.Page - 1) * perPage
	p.Items = found[from:min(from+perPage, len(found))]
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
	f.Title, f.Rev, f.Data = "Services", rev, p
	return nil
}

// servicePage is one Service.
type servicePage struct {
	*inspect.Detail
	Full         string // "ns/name"
	Level        level
	Pictures     []picture
	MorePictures int
	Changes      []change
}

// shownLines is the number of endpoints, and of frontends, per family on the page of a Service.
const shownLines = 500

// lately is the number of changes on the page of a Service.
const lately = 10

// service is the page of one Service.
func (h *Handler) service(r *http.Request, f *frame) error {
	got, err := parameters(r.URL.RawQuery, "name")
	if err == nil && got["name"] == "" {
		err = bad("name", "", "a Service, as namespace/name")
	}
	if err != nil {
		return err
	}
	var d inspect.Detail
	if err := h.client.Get(r.Context(), "service", url.Values{"name": {got["name"]}}, &d); err != nil {
		return err
	}
	p := servicePage{Detail: &d, Full: d.Namespace + "/" + d.Name, Level: levelOf(d.Severity)}
	p.Pictures, p.MorePictures = pictures(&d) // of all endpoints
	for k := range d.Families {
		f := &d.Families[k]
		f.MoreEndpoints += max(0, len(f.Endpoints)-shownLines)
		f.Endpoints = f.Endpoints[:min(len(f.Endpoints), shownLines)]
		f.Frontends = f.Frontends[:min(len(f.Frontends), shownLines)]
	}
	var reported inspect.Changes
	if f.Live { // else nothing has changed
		if err := h.client.Get(r.Context(), "events", url.Values{"service": {p.Full}}, &reported); err != nil {
			return err
		}
	}
	p.Changes = changesOf(reported, func(c *inspect.Change) bool { return c.Service == p.Full })
	p.Changes = p.Changes[:min(len(p.Changes), lately)]
	f.Title, f.Data = p.Full, p
	return nil
}

// changesPage lists recent changes.
type changesPage struct {
	Plot    plot
	Changes []change
	Gone    uint64
	More    int // remembered, but not shown
}

// shownChanges is the number of changes that the page lists.
const shownChanges = 200

// changes is the page with recent changes.
func (h *Handler) changes(r *http.Request, f *frame) error {
	var reported inspect.Changes
	_, err := parameters(r.URL.RawQuery)
	if err == nil {
		err = h.client.Get(r.Context(), "events", nil, &reported)
	}
	all := changesOf(reported, func(*inspect.Change) bool { return true })
	p := changesPage{Plot: plotOf(all), Changes: all[:min(len(all), shownChanges)], Gone: reported.Gone}
	p.More = len(all) - len(p.Changes)
	f.Title, f.Data = "Changes", p
	return err
}

// tracePage is the form and the result of a trace.
type tracePage struct {
	From, Port, To, Proto, In string
	Answer                    *inspect.TraceAnswer
	Problem                   string
}

// trace is the page that traces a packet.
func (h *Handler) trace(r *http.Request, f *frame) error {
	got, err := parameters(r.URL.RawQuery, "from", "port", "to", "proto", "in")
	if err != nil {
		return err
	}
	said := func(name string) string { return strings.TrimSpace(got[name]) }
	p := tracePage{From: said("from"), Port: said("port"), To: said("to"), Proto: said("proto"), In: said("in")}
	if p.From != "" || p.To != "" {
		if p.Answer, err = h.ask(r.Context(), &p); err != nil {
			p.Problem, f.code = inWordsOf(err), codeOf(err)
		}
	}
	f.Title, f.Data = "Trace", p
	return nil
}

// ask runs the query of p.
func (h *Handler) ask(ctx context.Context, p *tracePage) (*inspect.TraceAnswer, error) {
	switch {
	case p.From == "":
		return nil, badQuery{"from is empty: want the source of the packet, an address, a Pod or node"}
	case p.To == "":
		return nil, badQuery{"to is empty: want an address and a port, or a Service"}
	case p.Proto != "" && p.Proto != "tcp" && p.Proto != "udp" && p.Proto != "sctp":
		return nil, bad("proto", p.Proto, "tcp, udp or sctp")
	}
	to := p.To
	if p.Proto != "" && !strings.HasSuffix(to, "/"+p.Proto) {
		to += "/" + p.Proto
	}
	var a inspect.TraceAnswer
	if err := h.client.Get(ctx, "trace", inspect.TraceParams(p.From, p.Port, p.In, to), &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// nodePage shows the node, the mode, and whether the kernel holds the desired state.
type nodePage struct {
	Compared bool
	Diff     *inspect.Diff
	Problem  string
	Took     time.Duration
}

// node is the page about node, mode and drift. It compares the kernel only on request, to save
// work.
func (h *Handler) node(r *http.Request, f *frame) error {
	got, err := parameters(r.URL.RawQuery, "compare")
	if err == nil && got["compare"] != "" && got["compare"] != "now" {
		err = bad("compare", got["compare"], "now")
	}
	if err != nil {
		return err
	}
	p := nodePage{Compared: got["compare"] == "now"}
	if p.Compared {
		begun := time.Now()
		if err := h.client.Get(r.Context(), "diff", nil, &p.Diff); err != nil {
			p.Problem = err.Error()
		}
		p.Took = time.Since(begun)
	}
	f.Title, f.Data = "Node", p
	return nil
}

// traceLink returns a link to the trace of a packet from the node to a frontend.
func traceLink(key string) string {
	if strings.HasPrefix(key, "nodeport:") {
		return "trace?" + url.Values{"from": {"node"}, "to": {key}}.Encode()
	}
	at, proto, _ := strings.Cut(key, "/")
	return "trace?" + url.Values{"from": {"node"}, "to": {at}, "proto": {proto}}.Encode()
}
