package health

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// standing is the body of /healthz and /livez, with upstream's fields since 1.34 (HT-01, HT-02).
// Earlier ones have the same names, except healthy and status, and times that are not RFC 3339.
type standing struct {
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is not part of /livez.
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status"`
	// Waiting is the event for which the process waits before it writes.
	Waiting string `json:"waiting,omitempty"`
}

// readiness is the body of /readyz.
type readiness struct {
	CurrentTime time.Time `json:"currentTime"`
	Ready       bool      `json:"ready"`
	Draining    bool      `json:"draining"`
	// Missing are the families whose first full sync is not done.
	Missing []string `json:"missing"`
	Waiting string   `json:"waiting,omitempty"`
}

// ServeHTTP answers one probe.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var code int
	var body any
	switch r.URL.Path {
	case "/healthz":
		eligible := s.eligible()
		code, body = s.standing(&eligible)
	case "/livez":
		code, body = s.standing(nil)
	case "/readyz":
		code, body = s.readiness()
	default:
		http.NotFound(w, r)
		return
	}
	text, err := json.Marshal(body)
	if err != nil { // a clock beyond the year 9999
		code, text = http.StatusServiceUnavailable, []byte("{}")
		s.cfg.Log.Error("Failed to encode the health answer", "path", r.URL.Path, "err", err)
	}
	answer(w, code, text)
	s.cfg.Answered(r.URL.Path, code)
}

// standing returns the state of the families and, unless eligible is nil, of the node. If another
// process keeps this one from writing, that is a reason to take the node out of load balancers
// after a while, but no reason to restart this process.
func (s *Server) standing(eligible *bool) (int, standing) {
	r := s.look()
	out := standing{LastUpdated: r.last.UTC(), CurrentTime: r.now.UTC(), NodeEligible: eligible, Healthy: r.healthy,
		Status: make(map[string]familyReport, len(r.families)), Waiting: r.waiting}
	for family, one := range r.families {
		one.LastUpdated = one.LastUpdated.UTC()
		out.Status[family] = one
	}
	if eligible != nil && r.stalled {
		out.Healthy = false
	}
	if !out.Healthy || eligible != nil && !*eligible {
		return http.StatusServiceUnavailable, out
	}
	// Clients compare it with currentTime: it was once the time of the last sync (HT-05).
	out.LastUpdated = out.CurrentTime
	return http.StatusOK, out
}

func (s *Server) readiness() (int, readiness) {
	r := s.look()
	out := readiness{CurrentTime: r.now.UTC(), Draining: s.draining.Load(), Missing: r.missing, Waiting: r.waiting}
	if out.Missing == nil {
		out.Missing = []string{}
	}
	why := s.cfg.NotReady()
	out.Waiting = cmp.Or(out.Waiting, why)
	out.Ready = len(out.Missing) == 0 && why == "" && !out.Draining
	if out.Ready {
		return http.StatusOK, out
	}
	return http.StatusServiceUnavailable, out
}

// answer writes a body of JSON.
func answer(w http.ResponseWriter, code int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client has closed the connection
}
