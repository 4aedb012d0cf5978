package e2e

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/internal/netlab"
)

// Everything that the proxy asks for is granted by the built-in role system:node-proxier, and it asks for all that it needs: as
// the role of this API server says, no more. The API server's audit log, which also covers the tests before this one, tells.
func TestOnlyNodeProxierRights(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	startProxy(t)
	await(t, "pod3", addr, "pod1")
	awaitEvent(t, "Starting", netlab.Node1)

	allowed, refused := auditedRequests(t)
	t.Logf("the proxy asked for: %s", strings.Join(slices.Sorted(maps.Keys(allowed)), ", "))
	granted := nodeProxierRights(t)
	t.Logf("system:node-proxier grants: %s", strings.Join(slices.Sorted(maps.Keys(granted)), ", "))
	for what, reason := range allowed {
		if !strings.Contains(reason, `ClusterRole "system:node-proxier"`) || !granted[what] {
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
	for _, what := range []string{
		"watch /services", "watch discovery.k8s.io/endpointslices", "watch /nodes", "watch networking.k8s.io/servicecidrs",
		"create events.k8s.io/events",
	} {
		if allowed[what] == "" {
			t.Errorf("the audit log has no %s", what)
		}
	}
}

// nodeProxierRights reads the API server's own role: "VERB GROUP/RESOURCE".
func nodeProxierRights(t *testing.T) map[string]bool {
	t.Helper()
	role, err := bed.API.Client.RbacV1().ClusterRoles().Get(t.Context(), "system:node-proxier", metav1.GetOptions{})
	must(t, err)
	rights := map[string]bool{}
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					rights[verb+" "+group+"/"+resource] = true
				}
			}
		}
	}
	return rights
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
