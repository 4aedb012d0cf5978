package kube

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A server without streaming lists, or with a storage that lacks its part in them, gets a request
// for one of each resource at the start. It refuses; requests for lists follow at once, and none
// for streaming ones. The log has one line about it, which is no error.
func TestNoStreamingLists(t *testing.T) {
	for name, how := range map[string]func(*apiServer){
		"the server does not know them":      func(s *apiServer) { s.watchList = false },
		"the storage does not do its part":   func(s *apiServer) { s.noStorage = true },
		"the storage, in JSON":               func(s *apiServer) { s.noStorage, s.json = true, true },
		"the resource ServiceCIDR is absent": func(s *apiServer) { s.noStorage, s.answer = true, noServiceCIDRs },
	} {
		t.Run(name, func(t *testing.T) {
			withServer(t, func(t *testing.T, r *rig) {
				how(r.api)
				r.api.put(testService("web", 80), testSlice("web", "web-1", "10.1.0.5"), testNode("n1", "192.0.2.1"))
				r.start()
				r.wait("web:80→10.1.0.5 node:192.0.2.1")
				const initial = "sendInitialEvents=true"
				lists := func() int { return r.api.asked("/services?") - r.api.asked("/services?", "watch=true") }
				if n := r.api.asked(initial); n > 4 {
					t.Errorf("asked %d times for streaming lists", n)
				}
				before, had := r.api.asked(initial), lists()
				r.api.down()
				r.api.set(func() { r.api.compacted, r.api.rv = 1000, 2000 }) // what we know is forgotten: list again
				r.api.up()
				r.until(func() bool { return lists() > had }, func() string { return "no list after the outage" })
				r.wait("web:80→10.1.0.5 node:192.0.2.1")
				if n := r.api.asked(initial); n > before {
					t.Errorf("asked %d times more for streaming lists", n-before)
				}
				if said := r.log.Lines("does not stream lists"); len(said) != 1 || !strings.Contains(said[0],
					"level=INFO") {
					t.Errorf("the log says of streaming lists: %q", said)
				}
				for _, line := range r.log.Lines("level=ERROR") {
					if !strings.Contains(line, "cannot be reached") { // we have hung up
						t.Errorf("the log: %s", line)
					}
				}
			})
		})
	}
}

func noServiceCIDRs(r *http.Request) *metav1.Status {
	if resourceOf(r) == "servicecidrs" {
		return failure(404, metav1.StatusReasonNotFound, "the server could not find the requested resource")
	}
	return nil
}
