//go:build linux

package main

import (
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"kube-proxy/cli"
)

// TN-84: the process that writes rules serves no page. Root starts one, on loopback, below an
// address that no other user knows; it reports when the proxy is gone, shows the next one, and ends
// at once though a browser follows it.
func TestUI(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.command("ip", "address", "add", "172.18.0.7/32", "dev", "lo")
	n.write("m/web.yaml", service("web", "10.96.7.7", 80, "10.0.0.7"))
	p := n.serve("nftables", "--metrics-bind-address=0.0.0.0:10249")
	for _, path := range []string{"", "/", "/ui", "/ui/", "/ui/services.json"} {
		n.code("http://127.0.0.1:10249"+path, 404)
	}
	for args, says := range map[string]string{
		"--listen=0.0.0.0:10300":         "want a loopback address and a port",
		"--listen=localhost":             "want a loopback address and a port",
		"--listen=127.0.0.1:10249":       "address already in use",
		"--admin-socket=/nowhere/a.sock": "no kube-proxy runs here",
	} {
		if code, out, errOut := n.kubeProxy("ui", args); code == 0 || out != "" || !strings.Contains(errOut, says) {
			t.Errorf("%s: exit code %d, %q, %q", args, code, out, errOut)
		}
	}
	if code, _, errOut := n.kubeProxyAs([]string{asUser + "=65534"}, "ui"); code != cli.ExitNotAsked ||
		!strings.Contains(errOut, "only for root") {
		t.Errorf("as another user: exit code %d, %s", code, errOut)
	}

	page := n.start([]string{"ui", "--listen=127.0.0.1:10300"})
	address := regexp.MustCompile(`(?m)^http://127\.0\.0\.1:10300/[A-Z2-7]{26}/$`)
	page.await(address)
	url := address.FindString(page.log())
	has(t, "the page", n.code(url, 200).body, "shop/web")
	has(t, "the Service's page", n.code(url+"service?name=shop/web", 200).body, "10.96.7.7")
	has(t, "without the secret", n.code("http://127.0.0.1:10300/service?name=shop/web", 403).body, "kube-proxy ui")
	if a, err := n.ask("GET", strings.Replace(url, "127.0.0.1", "172.18.0.7", 1), ""); err == nil {
		t.Errorf("at an address of the node: %d", a.code)
	}

	n.write("m/late.yaml", service("late", "10.96.7.8", 80, "10.0.0.8"))
	n.until(url, "the new Service", func(a answer) bool { return strings.Contains(a.body, "shop/late") })
	p.stop()
	has(t, "while no proxy runs", n.code(url, 503).body, "no kube-proxy runs here")
	n.start(usual("nftables"))
	n.until(url, "the next proxy", func(a answer) bool {
		return a.code == 200 && strings.Contains(a.body, "shop/late")
	})
	open, err := n.client().Get(url + "events")
	if err != nil || open.StatusCode != http.StatusOK {
		t.Fatal(open, err)
	}
	defer open.Body.Close()
	if code := page.end(syscall.SIGINT); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
