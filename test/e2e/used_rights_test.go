package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kube-proxy/test/e2e/controlplane"
)

// rights are all possible requests of kube-proxy, by "verb group/resource", and when it sends them.
// asked: in each run of these tests.
var rights = map[string]struct {
	when  string
	asked bool
}{
	"list /services": {"an API server without streaming lists; the UID of a Service that an " +
		"event is about", false},
	"watch /services":                       {"always", true},
	"list discovery.k8s.io/endpointslices":  {"as Services", false},
	"watch discovery.k8s.io/endpointslices": {"always", true},
	"get /nodes":                            {"no mode is configured: the Node's annotation may choose it", false},
	"list /nodes":                           {"as Services", false},
	"watch /nodes":                          {"always", true},
	"list networking.k8s.io/servicecidrs":   {"as Services", false},
	"watch networking.k8s.io/servicecidrs":  {"always, where the API server has them", true},
	"create events.k8s.io/events":           {"EV-01: each start", true},
	"patch events.k8s.io/events":            {"an event happened again", false},
}

// Every request of the proxy is granted by the built-in role system:node-proxier, which is
// unchanged and the only role of the proxy's user. The API server's audit log, which also covers
// the tests before this one, has the evidence.
func TestOnlyNodeProxierRights(t *testing.T) {
	begin(t)
	onlyBuiltInRole(t)
	for what := range rights {
		if !mayProxy(t, what) {
			t.Errorf("the role system:node-proxier does not grant %s", what)
		}
	}
	for _, what := range []string{"get /services", "list /pods", "update /nodes", "list /secrets",
		"delete events.k8s.io/events"} {
		if mayProxy(t, what) {
			t.Errorf("the proxy of these tests may %s, which no real proxy may", what)
		}
	}
	addr := web(t, "web", "pod1")
	proxy := startProxy(t)
	await(t, "pod3", addr, "pod1")
	must(t, proxy.StopInOrder()) // a watch is in the log when it is over

	var allowed, refused map[string]string
	missing := func() (out []string) {
		allowed, refused = auditedRequests(t)
		for what, right := range rights {
			if right.asked && allowed[what] == "" {
				out = append(out, what)
			}
		}
		return out
	}
	for deadline := time.Now().Add(patience); len(missing()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("the audit log does not have %q", missing())
			break
		}
	}
	t.Logf("the proxy asked for: %s", strings.Join(slices.Sorted(maps.Keys(allowed)), ", "))
	for what, reason := range allowed {
		if _, known := rights[what]; !known {
			t.Errorf("%s is not among the rights that a proxy should need", what)
		}
		if !strings.Contains(reason, `ClusterRole "system:node-proxier"`) {
			t.Errorf("%s is allowed for another reason: %s", what, reason)
		}
	}
	for what, event := range refused {
		// An API server that has just started has not read its roles yet and refuses everything. A
		// proxy that is refused a watch tries a list, so the two count as one.
		_, resource, _ := strings.Cut(what, " ")
		if allowed[what] == "" && allowed["watch "+resource] == "" {
			t.Errorf("%s is never allowed: %s", what, event)
		} else {
			t.Logf("refused by an API server that was starting: %s", event)
		}
	}
}

// onlyBuiltInRole fails the test if the proxy's user has a role that a new API server would not
// give it, or the role another rule.
func onlyBuiltInRole(t *testing.T) {
	t.Helper()
	rbac := bed.API.Client.RbacV1()
	role, err := rbac.ClusterRoles().Get(t.Context(), "system:node-proxier", metav1.GetOptions{})
	must(t, err)
	var rules []string
	for _, r := range role.Rules {
		rules = append(rules, fmt.Sprintf("%q %q %q", r.Verbs, r.APIGroups, r.Resources))
	}
	want := []string{ // of kube-apiserver 1.36
		`["list" "watch"] [""] ["endpoints" "services"]`,
		`["get" "list" "watch"] [""] ["nodes"]`,
		`["create" "patch" "update"] ["" "events.k8s.io"] ["events"]`,
		`["list" "watch"] ["networking.k8s.io"] ["servicecidrs"]`,
		`["list" "watch"] ["discovery.k8s.io"] ["endpointslices"]`,
	}
	if !slices.Equal(rules, want) {
		t.Errorf("system:node-proxier has the rules\n%s\nwant\n%s", strings.Join(rules, "\n"), strings.Join(want, "\n"))
	}
	bindings, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	var roles []string
	for _, b := range bindings.Items {
		for _, s := range b.Subjects {
			if s.Kind == rbacv1.UserKind && s.Name == controlplane.ProxyUser {
				roles = append(roles, b.RoleRef.Name)
			}
		}
	}
	namespaced, err := rbac.RoleBindings("").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, b := range namespaced.Items {
		for _, s := range b.Subjects {
			if s.Name == controlplane.ProxyUser {
				roles = append(roles, b.Namespace+"/"+b.RoleRef.Name)
			}
		}
	}
	if !slices.Equal(roles, []string{"system:node-proxier"}) {
		t.Errorf("the proxy's user has the roles %q", roles)
	}
}

// mayProxy queries the API server whether the proxy's user has the right "verb group/resource".
func mayProxy(t *testing.T, what string) bool {
	t.Helper()
	verb, rest, _ := strings.Cut(what, " ")
	group, resource, _ := strings.Cut(rest, "/")
	review, err := bed.API.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(),
		&authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: controlplane.ProxyUser, Groups: []string{"system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource,
					Namespace: "default"},
			},
		}, metav1.CreateOptions{})
	must(t, err)
	return review.Status.Allowed
}

// auditedRequests reads the audit log: verbs and resources that were allowed, with the reason, and
// that were refused, with the request.
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
