//go:build linux

package nftables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/test/planetest"
)

// Root of a user namespace (rootless clusters) may not force the size of socket buffers, but can
// still serve.
func TestUserNamespace(t *testing.T) {
	const inside = "KUBE_PROXY_TEST_IN_USER_NAMESPACE"
	if os.Getenv(inside) == "" {
		if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil ||
			strings.TrimSpace(string(b)) == "0" {
			t.Skip("this machine has no user namespaces")
		}
		cmd := exec.Command("unshare", "--user", "--map-root-user", "--net", os.Args[0],
			"-test.run=^TestUserNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestUserNamespace") {
			t.Fatalf("in a user namespace: %v\n%s", err, out)
		}
		return
	}
	w := planetest.World{Family: lb.IPv4}
	p := newPlane(t, w.Family)
	tab := w.Table(20, 3)
	reset(t, p, tab)
	apply(t, p, planetest.Changes(tab.Replace(w.Full(30, 100, 4, 2, 0))))
	if n, err := p.Audit(t.Context(), true); err != nil || n != 0 {
		t.Errorf("a full audit repaired %d, error %v", n, err)
	}
	dump(t, p)
}
