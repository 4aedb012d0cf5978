//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The status page of a real process: for who is on the node alone, though the server listens everywhere; a reload turns it off; an open
// page does not hold up the end.
func TestUI(t *testing.T) {
	t.Parallel()
	n, dir := newNamespace(t), t.TempDir()
	n.command("ip", "address", "add", "172.18.0.7/32", "dev", "lo")
	file := filepath.Join(dir, "config.yaml")
	write(t, filepath.Join(dir, "m/web.yaml"), []byte("kind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.7.7, ports: [{port: 80}]}\n"))
	write(t, file, nftablesFile("metricsBindAddress: 0.0.0.0:10249\n"))
	p := n.configured(dir, file)
	const page = "http://localhost:10249/ui/"
	n.until(page, "the table", func(a answer) bool { return a.code == 200 && strings.Contains(a.body, "shop/web") })
	if a := n.code("http://127.0.0.1:10249/ui/service?name=shop/web", 200); !strings.Contains(a.body, "10.96.7.7") {
		t.Errorf("the Service's page: %s", a.body)
	}
	has(t, "from elsewhere", n.code("http://172.18.0.7:10249/ui/", 403).body, "port-forward")
	n.code("http://172.18.0.7:10249/metrics", 200)
	if a, err := n.ask("POST", page, ""); err != nil || a.code != 405 {
		t.Errorf("POST: %+v %v", a, err)
	}
	write(t, file, nftablesFile("metricsBindAddress: 0.0.0.0:10249\nui: false\n"))
	n.until(page, "that it is off", func(a answer) bool { return a.code == 404 && strings.Contains(a.body, "--ui=false") })
	write(t, file, nftablesFile("metricsBindAddress: 0.0.0.0:10249\n"))
	n.until(page, "that it is there again", func(a answer) bool { return a.code == 200 })

	open, err := n.client().Get(page + "events")
	if err != nil || open.StatusCode != 200 {
		t.Fatal(open, err)
	}
	defer open.Body.Close()
	begun := time.Now()
	p.stop()
	t.Logf("the process with an open page ended within %v", time.Since(begun))
}
