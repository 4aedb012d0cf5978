package e2e

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// Everything that the proxy asks for is granted by the built-in role system:node-proxier. The API server's audit log, which
// also covers the tests before this one, tells.
func TestOnlyNodeProxierRights(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	startProxy(t)
	await(t, "pod3", addr, "pod1")

	allowed, refused := auditedRequests(t)
	t.Logf("the proxy asked for: %s", strings.Join(slices.Sorted(maps.Keys(allowed)), ", "))
	for what, reason := range allowed {
		if !strings.Contains(reason, `ClusterRole "system:node-proxier"`) {
			t.Errorf("%s is allowed for another reason: %s", what, reason)
		}
	}
	for what, event := range refused {
		// An API server that has just started has not read its roles yet and refuses everything. A proxy that is refused a watch
		// tries a list, so the two count as one.
		_, resource, _ := strings.Cut(what, " ")
		if allowed["watch "+resource] == "" {
			t.Errorf("%s is never allowed: %s", what, event)
		} else {
			t.Logf("refused by an API server that was starting: %s", event)
		}
	}
	for _, resource := range []string{"/services", "discovery.k8s.io/endpointslices", "/nodes"} {
		if allowed["watch "+resource] == "" {
			t.Errorf("the audit log has no watch of %s", resource)
		}
	}
}

// auditedRequests reads the audit log: verbs and resources that were allowed, with the reason, and that were refused, with the
// request.
func auditedRequests(t *testing.T) (allowed, refused map[string]string) {
	t.Helper()
	log, err := os.Open(bed.API.AuditLog())
	must(t, err)
	defer log.Close()
	allowed, refused = map[string]string{}, map[string]string{}
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var event auditEvent
		must(t, json.Unmarshal(scanner.Bytes(), &event))
		what := event.Verb + " " + event.ObjectRef.APIGroup + "/" + event.ObjectRef.Resource
		if event.Annotations["authorization.k8s.io/decision"] == "allow" {
			allowed[what] = event.Annotations["authorization.k8s.io/reason"]
		} else {
			refused[what] = event.RequestURI + " at " + event.RequestReceivedTimestamp
		}
	}
	must(t, scanner.Err())
	return allowed, refused
}

// auditEvent is the part of a line of the audit log that matters here.
type auditEvent struct {
	Verb       string
	RequestURI string

	RequestReceivedTimestamp string

	ObjectRef struct{ Resource, APIGroup string }

	Annotations map[string]string
}
