package status

import (
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/common/expfmt"
)

// shared computes one response at a time, and sends it when it is complete: computing takes several
// times as much memory as the response, and a client may read it slowly. Requests that wait for the
// same form get the same response, so however many clients ask, one waits for two computations of
// each form at most.
func shared(h http.Handler) http.Handler {
	s := &sharing{inner: h, making: make(chan struct{}, 1), next: map[form]*scrape{}}
	return http.HandlerFunc(s.serve)
}

// form is what a response depends on; a request has one of a few.
type form struct {
	format expfmt.Format
	gzip   bool
}

// scrape is a computation that has not begun, or its result.
type scrape struct {
	done   chan struct{}
	answer *wholeAnswer
}

type sharing struct {
	inner  http.Handler
	making chan struct{} // has a value while one computes

	mu   sync.Mutex
	next map[form]*scrape // not begun
}

func (s *sharing) serve(w http.ResponseWriter, r *http.Request) {
	f := formOf(r.Header)
	s.mu.Lock()
	c, waiting := s.next[f]
	if !waiting {
		c = &scrape{done: make(chan struct{}), answer: &wholeAnswer{header: http.Header{}, code: http.StatusOK}}
		s.next[f] = c
	}
	s.mu.Unlock()
	if !waiting {
		s.compute(f, c, r)
	}
	select {
	case <-c.done:
	case <-r.Context().Done():
		return
	}
	for name, values := range c.answer.header {
		w.Header()[name] = values
	}
	w.WriteHeader(c.answer.code)
	w.Write(c.answer.body.Bytes()) // the client has closed the connection
}

// compute computes a response for all that wait for it.
func (s *sharing) compute(f form, c *scrape, r *http.Request) {
	complete := false
	defer func() {
		if !complete { // it panics
			c.answer = &wholeAnswer{header: http.Header{}, code: http.StatusInternalServerError}
		}
		close(c.done)
	}()
	s.making <- struct{}{}
	defer func() { <-s.making }()
	s.mu.Lock()
	delete(s.next, f) // later requests see later values
	s.mu.Unlock()
	r = r.Clone(r.Context())
	r.Header = http.Header{"Accept": {string(f.format)}, "Accept-Encoding": {"identity"}}
	if f.gzip {
		r.Header.Set("Accept-Encoding", "gzip")
	}
	s.inner.ServeHTTP(c.answer, r)
	complete = true
}

// formOf returns the form that a request accepts.
func formOf(h http.Header) form {
	f := form{format: expfmt.NegotiateIncludingOpenMetrics(h)}
	for _, coding := range strings.Split(h.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
		f.gzip = f.gzip || strings.TrimSpace(name) == "gzip" && (err != nil || q > 0)
	}
	return f
}
