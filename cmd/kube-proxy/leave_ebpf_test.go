//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// probe requests a page of the health server.
func (n *nodeLab) probe(path string) (code int, body string) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return n.dial(netlab.Node1, "tcp", netip.MustParseAddrPort("127.0.0.1:10256"), time.Second)
		}}}
	r, err := client.Get("http://127.0.0.1:10256" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	do(n.t, err)
	return r.StatusCode, string(text)
}

// TestLeaveEBPF: after mode ebpf a process that may not ask for programs is not ready while sockets
// show that some are left, and says how to remove them; --init-only, with all rights, removes them
// without their pins, and the process becomes ready (EB-31).
func TestLeaveEBPF(t *testing.T) {
	n := newTraceLab(t, "ebpf")
	bpffs := t.TempDir()
	do(t, unix.Mount("bpf", bpffs, "bpf", 0, ""))
	t.Cleanup(func() { do(t, unix.Unmount(bpffs, 0)) })
	n.serve("--ebpf-cgroup="+n.Cgroup(netlab.Node1), "--ebpf-bpffs="+bpffs).stop()
	n.mode = "nftables"
	p := n.confined(",+net_admin", "--proxy-mode=nftables", "--hostname-override=node1", "--manifests="+n.dir,
		"--cluster-cidr=10.1.0.0/16,fd00:10:1::/48", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--admin-socket="+n.dir+"/admin.sock")
	p.await(regexp.MustCompile(`E.*Failed to remove all rules of another mode.*eBPF programs connect sockets for ` +
		`\S+ to \S+, and this process may not remove them.*lacks CAP_SYS_ADMIN.*kube-proxy --init-only`))
	until(t, func() string {
		if code, body := n.probe("/readyz"); code != 503 || !strings.Contains(body, "eBPF programs connect sockets") {
			return body
		}
		return ""
	})
	if code, body := n.probe("/livez"); code != 200 {
		t.Errorf("/livez: %d %s", code, body)
	}
	metrics, err := p.get("/metrics")
	do(t, err)
	if !strings.Contains(metrics, "kubeproxy_rules_overridden 1\n") {
		t.Error("the metric does not show the programs")
	}
	if code, out := n.query("--cleanup"); code != 1 || !strings.Contains(out, "another kube-proxy runs") {
		t.Errorf("--cleanup beside the proxy: exit code %d\n%s", code, out)
	}
	init := n.program("--init-only", "--proxy-mode=nftables", "--conntrack-max-per-core=0", "--conntrack-min=0")
	if code := init.end(0); code != 0 || !strings.Contains(init.log(), `eBPF programs of IPv4`) ||
		!strings.Contains(init.log(), `eBPF programs of IPv6`) {
		t.Errorf("--init-only: exit code %d\n%s", code, init.log())
	}
	until(t, func() string {
		code, body := n.probe("/readyz")
		if code == 200 {
			return ""
		}
		return body + "\n" + p.log()
	})
	p.stop()
	if times := strings.Count(p.log(), "Failed to remove all rules of another mode"); times != 1 {
		t.Errorf("%d reports:\n%s", times, p.log())
	}
}

// TestCleanupEBPF: --cleanup removes the programs without their pins, and fails if it may not
// (EB-31).
func TestCleanupEBPF(t *testing.T) {
	n := newTraceLab(t, "ebpf")
	bpffs := t.TempDir()
	do(t, unix.Mount("bpf", bpffs, "bpf", 0, ""))
	t.Cleanup(func() { do(t, unix.Unmount(bpffs, 0)) })
	n.serve("--ebpf-cgroup="+n.Cgroup(netlab.Node1), "--ebpf-bpffs="+bpffs).stop()
	p := n.confined(",+net_admin", "--cleanup")
	if code := p.end(0); code != 1 || !strings.Contains(p.log(), "the process lacks CAP_SYS_ADMIN") {
		t.Errorf("without the right: exit code %d\n%s", code, p.log())
	}
	for _, want := range []string{`eBPF programs of IPv4`, "No kube-proxy rules found"} {
		if p := n.program("--cleanup"); p.end(0) != 0 || !strings.Contains(p.log(), want) {
			t.Errorf("want %q in\n%s", want, p.log())
		}
	}
}
