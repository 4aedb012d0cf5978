package e2e

import (
	"os"
	"path/filepath"
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

// badAccess is a failure of the proxy's access to the API.
type badAccess struct {
	name    string
	user    string
	spoil   func(*api.Config)
	file    string // instead of a kubeconfig that is written
	message string // text of one line of the log, case ignored
	ends    bool   // the proxy ends; otherwise it must keep trying

	perResource bool // the line may occur once for each resource, as each needs a separate permission
}

func badAccesses() []badAccess {
	proxy := controlplane.ProxyUser
	return []badAccess{
		{name: "wrong-token", user: proxy, message: `unauthorized|\b401\b`,
			spoil: func(c *api.Config) { c.AuthInfos["e2e"].Token = "wrong" }},
		{name: "no-permission", user: controlplane.StrangerUser, message: `forbidden|\b403\b`, perResource: true},
		{name: "other-host", user: proxy, message: `certificate is valid for`,
			spoil: func(c *api.Config) {
				c.Clusters["e2e"].Server = strings.Replace(c.Clusters["e2e"].Server, testbed.APIAddr.String(),
					testbed.OtherAPIAddr.String(), 1)
			}},
		{name: "unknown-authority", user: proxy, message: `unknown authority`,
			spoil: func(c *api.Config) { c.Clusters["e2e"].CertificateAuthorityData = nil }},
		{name: "no-listener", user: proxy, message: `connection refused`,
			spoil: func(c *api.Config) { c.Clusters["e2e"].Server = "https://" + testbed.APIAddr.String() + ":1" }},
		{name: "no-such-file", file: "/does/not/exist.kubeconfig", message: `/does/not/exist\.kubeconfig`, ends: true},
		{name: "no-server", user: proxy, message: `no-server\.kubeconfig.*server|server.*no-server\.kubeconfig`,
			ends:  true,
			spoil: func(c *api.Config) { c.Clusters["e2e"].Server = "" }},
		{name: "no-yaml", file: "garbage", message: `no-yaml\.kubeconfig`, ends: true},
	}
}

// Any fault in the kubeconfig: one line reports it, and the previous proxy's rules stay and serve.
func TestBadAccess(t *testing.T) { testBadAccesses(t, badAccesses()) }

// One way is enough to see that rules of iptables stay too.
func TestBadAccessIPTables(t *testing.T) {
	inMode(t, testbed.IPTables)
	testBadAccesses(t, badAccesses()[:1])
}

func testBadAccesses(t *testing.T, cases []badAccess) {
	begin(t)
	addr := web(t, "web", "pod1")
	first := startProxy(t)
	await(t, "pod3", addr, "pod1")
	must(t, first.StopInOrder())
	before := ruleset(t)

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, err := bed.StartProxyWith(c.kubeconfig(t))
			must(t, err)
			t.Cleanup(func() {
				if err := p.Kill(); err != nil {
					t.Error(err)
				}
			})
			c.check(t, p)
			if after := ruleset(t); after != before {
				t.Errorf("the rules were\n%s\nand are\n%s", before, after)
			}
			await(t, "pod3", addr, "pod1")
		})
	}
}

// kubeconfig writes the spoilt kubeconfig.
func (c badAccess) kubeconfig(t *testing.T) string {
	t.Helper()
	switch c.file {
	case "":
		file, err := bed.API.Kubeconfig(c.name, c.user, c.spoil)
		must(t, err)
		return file
	case "garbage":
		file := filepath.Join(t.TempDir(), c.name+".kubeconfig")
		must(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\nclusters: {{{\n"), 0o600))
		return file
	default:
		return c.file
	}
}

// check waits until the proxy reports the fault and watches it for 4 s more. It fails the test
// unless the report was one line, and the proxy has ended or continues as expected.
func (c badAccess) check(t *testing.T, p *testbed.Proxy) {
	t.Helper()
	message := regexp.MustCompile("(?i)" + c.message)
	said := func() (lines []string) {
		for line := range strings.Lines(p.Log()) {
			// At this verbosity the log begins with the values of all flags (FL-05), the file's
			// name among them.
			if message.MatchString(line) && !strings.Contains(line, `] "FLAG: `) {
				lines = append(lines, line)
			}
		}
		return lines
	}
	for deadline := time.Now().Add(patience); len(said()) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no line matches %q:\n%s", c.message, p.Log())
		}
	}
	ended, wait := false, 4*time.Second
	if c.ends {
		wait = patience
	}
	select {
	case <-p.Done():
		ended = true
	case <-time.After(wait):
	}
	switch {
	case c.ends && !ended:
		t.Errorf("the proxy goes on")
	case !c.ends && ended:
		t.Errorf("the proxy has given up, status %d", p.ExitCode())
	case ended && p.ExitCode() <= 0:
		t.Errorf("status %d, want a failure", p.ExitCode())
	}
	count := map[string]int{}
	for _, line := range said() {
		about := ""
		if c.perResource {
			about = resources.FindString(line)
		}
		count[about]++
	}
	for about, n := range count {
		if n != 1 {
			t.Errorf("%d lines match %q %s, want 1:\n%s", n, c.message, about, strings.Join(said(), ""))
		}
	}
	t.Logf("ended: %v; it said: %s", ended, strings.TrimSpace(said()[0]))
}

var resources = regexp.MustCompile(`\b(services|endpointslices|nodes|servicecidrs)\b`)

// A proxy that is not allowed to list keeps trying: once the permission is given, it serves.
func TestPermissionComesLater(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	file, err := bed.API.Kubeconfig("later", controlplane.StrangerUser, nil)
	must(t, err)
	p, err := bed.StartProxyWith(file)
	must(t, err)
	t.Cleanup(func() { endProxy(t, p) })
	time.Sleep(2 * time.Second)
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
	if bed.Mode != testbed.NFTables {
		return // there the service network has no rules (SV-62)
	}
	// An API server that is starting refuses everything for a moment, so this must not wait long
	// either.
	awaitRule(t, "service-network", "10.96.0.0/12 drop")
	t.Logf("the service network is known %v after the permission was given", time.Since(start).Round(time.Millisecond))
	must(t, bindings.Delete(t.Context(), "later", metav1.DeleteOptions{}))
}
