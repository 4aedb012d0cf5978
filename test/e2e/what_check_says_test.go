package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/source/kube"
)

// kube-proxy check queries a real API server with the rights of a proxy: it answers, the Node
// exists, nothing is denied, and networks are known. For a node of another name, and without
// rights, it reports that. It runs after the tests of rights, because it sends requests that a
// proxy does not.
func TestCheck(t *testing.T) {
	begin(t)
	for _, c := range []struct {
		name, node string
		args, want []string
	}{
		{"a node of the cluster", netlab.Node1, nil, []string{"api-server ok: http…is v1.", "rights ok",
			"clock ok API server", "node ok: the Node \"" + netlab.Node1 + "\" exists", "address-conflict ok"}},
		{"a name that no Node has", "ghost", nil, []string{"api-server ok", "node error: there is no Node \"ghost\""}},
	} {
		p, err := bed.StartProxyExactly(slices.Concat([]string{"check", "-o=json", "--kubeconfig", bed.Kubeconfig(),
			"--hostname-override", c.node, "--proxy-mode=nftables",
			"--cluster-cidr", netlab.Cluster4.String() + "," + netlab.Cluster6.String()}, c.args)...)
		must(t, err)
		code := p.ExitCode()
		var report struct {
			ExitCode int
			Findings []struct{ ID, Severity, About, Seen string }
		}
		if err := json.Unmarshal([]byte(p.Log()), &report); err != nil || report.ExitCode != code {
			t.Fatalf("%s: exit code %d, %v:\n%s", c.name, code, err, p.Log())
		}
		var lines []string
		for _, f := range report.Findings {
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s %s", f.ID, f.Severity, f.About), " ")+": "+
				f.Seen)
		}
		for _, want := range c.want {
			begins, has, _ := strings.Cut(want, "…")
			if !slices.ContainsFunc(lines, func(l string) bool {
				return strings.HasPrefix(l, begins) && strings.Contains(l, has)
			}) {
				t.Errorf("%s: no finding %q among\n%s", c.name, want, strings.Join(lines, "\n"))
			}
		}
	}
}

// The rights that check verifies are exactly those in the tests of rights.
func TestRequestsAreKnown(t *testing.T) {
	for _, r := range kube.Requests {
		if _, ok := rights[r]; !ok {
			t.Errorf("%s is not among the rights that a proxy may need", r)
		}
	}
	if len(kube.Requests) != len(rights) {
		t.Errorf("check asks for %d rights of %d", len(kube.Requests), len(rights))
	}
}
