package e2e

import (
	"regexp"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd/api"

	"kube-proxy/test/e2e/controlplane"
	"kube-proxy/test/e2e/testbed"
)

// A fault of the access to the API server is reported in one line; the proxy keeps trying, and the
// previous proxy's rules stay and serve. source/kube.TestKubeconfigErrors has faults that end it.
func TestBadAccess(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	first := startProxy(t)
	await(t, "pod3", addr, "pod1")
	must(t, first.StopInOrder())
	before := ruleset(t)

	type badAccess struct {
		name, user string
		spoil      func(*api.Config)
		message    string // text of one line of the log, case ignored
	}
	cases := []badAccess{
		{"wrong-token", controlplane.ProxyUser, func(c *api.Config) { c.AuthInfos["e2e"].Token = "wrong" },
			`unauthorized|\b401\b`},
		{"no-permission", controlplane.StrangerUser, nil, `(forbidden|\b403\b).*\bservices\b`},
		{"other-host", controlplane.ProxyUser, func(c *api.Config) {
			c.Clusters["e2e"].Server = strings.Replace(c.Clusters["e2e"].Server, testbed.APIAddr.String(),
				testbed.OtherAPIAddr.String(), 1)
		}, `certificate is valid for`},
		{"unknown-authority", controlplane.ProxyUser,
			func(c *api.Config) { c.Clusters["e2e"].CertificateAuthorityData = nil }, `unknown authority`},
		{"no-listener", controlplane.ProxyUser,
			func(c *api.Config) { c.Clusters["e2e"].Server = "https://" + testbed.APIAddr.String() + ":1" },
			`connection refused`},
	}
	var proxies []*testbed.Proxy
	for _, c := range cases {
		file, err := bed.API.Kubeconfig(c.name, c.user, c.spoil)
		must(t, err)
		proxies = append(proxies, startProxy(t, "--kubeconfig="+file))
	}
	for i, c := range cases {
		awaitLog(t, proxies[i], "(?i)"+c.message)
	}
	time.Sleep(4 * time.Second) // for other lines
	for i, c := range cases {
		lines := regexp.MustCompile("(?i).*(?:"+c.message+").*").FindAllString(proxies[i].Log(), -1)
		if len(lines) != 1 {
			t.Errorf("%s: %d lines match %q:\n%s", c.name, len(lines), c.message, strings.Join(lines, "\n"))
		}
		select {
		case <-proxies[i].Done():
			t.Errorf("%s: the proxy has given up, status %d", c.name, proxies[i].ExitCode())
		default:
		}
		must(t, proxies[i].Kill()) // in order, it would wait to send its events
	}
	if after := ruleset(t); after != before {
		t.Errorf("the rules were\n%s\nand are\n%s", before, after)
	}
	await(t, "pod3", addr, "pod1")
}

// A proxy that is not allowed to list keeps trying: once the permission is given, it serves.
func TestPermissionComesLater(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	file, err := bed.API.Kubeconfig("later", controlplane.StrangerUser, nil)
	must(t, err)
	p := startProxy(t, "--kubeconfig="+file)
	awaitLog(t, p, "forbidden|403")
	if name, err := bed.Ask("pod3", addr, brief); err == nil {
		t.Fatalf("%s answers although the proxy may not read services", name)
	}
	bindings := bed.API.Client.RbacV1().ClusterRoleBindings()
	_, err = bindings.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "later"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind,
			Name: controlplane.StrangerUser}},
	}, metav1.CreateOptions{})
	must(t, err)
	start := time.Now()
	await(t, "pod3", addr, "pod1")
	t.Logf("served %v after the permission was given", time.Since(start).Round(time.Millisecond))
	// The rules for unknown ports wait for the service network (SV-62). An API server that is
	// starting refuses everything for a moment, so this must not wait long either.
	until(t, func() string {
		if rules := ruleset(t); !strings.Contains(rules, "10.96.0.0/12 drop") {
			return "no rule drops packets to the service network:\n" + rules
		}
		return ""
	})
	t.Logf("the service network is known %v after the permission was given", time.Since(start).Round(time.Millisecond))
	must(t, bindings.Delete(t.Context(), "later", metav1.DeleteOptions{}))
}
