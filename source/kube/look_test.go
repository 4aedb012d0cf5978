package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authorization "k8s.io/api/authorization/v1"
)

// lookedAt is an API server that gets one request.
type lookedAt struct {
	noNode, noCIDRs bool
	denies          string
	late            time.Duration
	broken          string // a path that fails
}

func (s lookedAt) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.Now().Add(-s.late).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	notFound := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	switch path := r.URL.Path; {
	case s.broken != "" && strings.HasPrefix(path, s.broken):
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no",`+
			`"code":403}`)
	case path == "/version":
		fmt.Fprint(w, `{"gitVersion":"v1.36.3"}`)
	case path == "/api/v1/nodes/n1" && !s.noNode:
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},`+
			`"status":{"addresses":[{"type":"Hostname","address":"n1"},`+
			`{"type":"InternalIP","address":"192.0.2.1"}]}}`)
	case path == "/apis/networking.k8s.io/v1/servicecidrs" && !s.noCIDRs:
		fmt.Fprint(w, `{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/v1",`+
			`"items":[{"spec":{"cidrs":["10.96.0.0/12","fd00:10:96::/112"]}}]}`)
	case path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		var review authorization.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = a.Verb+" "+a.Group+"/"+a.Resource != s.denies
		json.NewEncoder(w).Encode(review)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, notFound)
	}
}

func TestLook(t *testing.T) {
	const whole = "v1.36.3 <nil>; node true [192.0.2.1] <nil>; denied [] <nil>; services " +
		"[10.96.0.0/12 fd00:10:96::/112] <nil>"
	for name, c := range map[string]struct {
		server lookedAt
		want   string
	}{
		"all is well": {lookedAt{}, whole},
		"no such Node": {lookedAt{noNode: true},
			strings.Replace(whole, "true [192.0.2.1]", "false []", 1)},
		"an API server before 1.33": {lookedAt{noCIDRs: true},
			strings.Replace(whole, "[10.96.0.0/12 fd00:10:96::/112]", "[]", 1)},
		"a right is missing": {lookedAt{denies: "watch discovery.k8s.io/endpointslices"},
			strings.Replace(whole, "denied []", "denied [watch endpointslices]", 1)},
		"the Node may not be read": {lookedAt{broken: "/api/v1/nodes"},
			strings.Replace(whole, "true [192.0.2.1] <nil>", "false [] kube: read the Node n1: no",
				1)},
		"rights may not be asked": {lookedAt{broken: "/apis/authorization"},
			strings.Replace(whole, "denied [] <nil>", "denied [] kube: check the right to list /services: no", 1)},
		"it refuses to say what it is": {lookedAt{broken: "/version"},
			" kube: http://HOST/version: 403 Forbidden; node false [] <nil>; denied [] <nil>; services [] <nil>"},
	} {
		server := httptest.NewServer(c.server)
		l := Look(t.Context(), Config{Master: server.URL, NodeName: "n1", Log: slog.New(slog.DiscardHandler),
			ContentType: "application/json"})
		got := fmt.Sprintf("%s %v; node %t %v %v; denied %v %v; services %v %v", l.Version, l.Err, l.Node,
			l.Addrs, l.NodeErr, l.Denied, l.DeniedErr, l.ServiceCIDRs, l.CIDRsErr)
		if want := strings.ReplaceAll(c.want, "HOST", strings.TrimPrefix(server.URL, "http://")); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
		server.Close()
	}
}

func TestLookAtTheClock(t *testing.T) {
	server := httptest.NewServer(lookedAt{late: time.Hour})
	defer server.Close()
	l := Look(t.Context(), Config{Master: server.URL, NodeName: "n1", Log: slog.New(slog.DiscardHandler),
		ContentType: "application/json"})
	if d := l.Ahead + time.Hour; d < -time.Minute || d > time.Minute {
		t.Errorf("the server's clock is %s ahead", l.Ahead)
	}
}

// A server that never answers delays no caller beyond the context, and one that is not there is
// named.
func TestLookEnds(t *testing.T) {
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hold }))
	defer server.Close()
	defer close(hold)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, url := range []string{server.URL, "http://127.0.0.1:9"} {
		if l := Look(ctx, Config{Master: url, NodeName: "n1", Log: slog.New(slog.DiscardHandler)}); l.Err == nil ||
			l.Host != url {
			t.Errorf("%s: %+v", url, l)
		}
	}
}
