//go:build linux

package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stays queries both pages of the health server for this time; each answer must have the code.
func (n *namespace) stays(what string, code int, d time.Duration) {
	n.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, page := range []string{"/healthz", "/livez"} {
			if a, err := n.ask(http.MethodGet, healthURL+page, ""); err != nil || a.code != code {
				n.t.Fatalf("%s: %s: %d %s, error %v; want %d", what, page, a.code, a.body, err, code)
			}
		}
	}
}

// choosy returns a PATH whose iptables-restore programs refuse input with the text "odd", and all
// input while the file sick exists.
func choosy(t *testing.T) (path, sick string) {
	t.Helper()
	sick = filepath.Join(t.TempDir(), "sick")
	return restoreBy(t, func(program string) string {
		return fmt.Sprintf(`#!/bin/sh
input=$(mktemp) && cat >"$input"
if [ -e %s ] || grep -q shop/odd "$input"; then
	rm "$input"
	echo "line 2: RULE_APPEND failed (No space left on device)" >&2
	exit 4
fi
%s "$@" <"$input"
code=$?
rm "$input"
exit $code
`, sick, program)
	}), sick
}

// HT-04, HT-02: one Service cannot be written, and nothing else is to be written. The kernel
// accepts a write that changes nothing, so the node stays in the load balancers, and the Service is
// logged. If the programs refuse everything, the node leaves them after two sync periods, until the
// programs work again.
func TestHealthOddServiceIPTables(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	path, sick := choosy(t)
	n.write("m/good.yaml", good())
	args := usual("iptables", "--iptables-sync-period=3s", "--iptables-min-sync-period=0")
	p := n.start(args, env("PATH="+path))
	p.await(allWritten)
	n.code(healthURL+"/healthz", 200)
	before := n.rules()
	n.write("m/odd.yaml", service("odd", "10.96.7.7", 80, "10.0.0.7"))
	n.until(metricsURL+"/metrics", "a failing row", func(a answer) bool {
		return strings.Contains(a.body, "\nkubeproxy_rows_failing{ip_family=\"IPv4\"} 1\n")
	})
	n.stays("one row is refused", 200, 9*time.Second)
	metrics := n.get(metricsURL + "/metrics").body
	has(t, "/metrics", metrics, "\nkubeproxy_rows_failing{ip_family=\"IPv4\"} 1\n",
		"\nkubeproxy_write_proofs_total{ip_family=\"IPv4\"} ")
	if strings.Contains(metrics, "\nkubeproxy_write_proofs_total{ip_family=\"IPv4\"} 0\n") {
		t.Errorf("no proof was made:\n%s", metrics)
	}
	has(t, "log", p.log(), "Failed to write a frontend", "10.96.7.7:80/tcp")
	if after := n.rules(); after != before {
		t.Errorf("the rules were\n%s\nand are\n%s", before, after)
	}
	write(t, sick, nil)
	n.write("m/other.yaml", service("other", "10.96.0.2", 80, "10.0.0.2"))
	n.code(healthURL+"/healthz", 503)
	n.stays("all is refused", 503, 4*time.Second)
	do(t, os.Remove(sick))
	n.code(healthURL+"/healthz", 200)
	n.stays("one row is refused again", 200, 7*time.Second)
	n.eventually("-A KUBE-SERVICES -d 10.96.0.2/32", "iptables-save", "-t", "nat")
	p.stop()
}
