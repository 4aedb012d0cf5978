//go:build linux

package main

import (
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// TestFallbackServes (S1, S2, DP-40): a host without usable iptables gets mode userspace, reports
// that by log and metric, and serves; --cleanup removes its objects.
func TestFallbackServes(t *testing.T) {
	n := newNodeLab(t)
	n.mode = "iptables"
	one, two := n.echo("pod1", 8080), n.echo("pod4", 8080)
	n.service(labService{name: "web", ip: labIP, nodePort: 30080, endpoints: []netip.AddrPort{one.at(),
		two.at()}})
	look := map[string]string{}
	for _, name := range []string{"nft", "ip"} {
		path, err := exec.LookPath(name)
		do(t, err)
		look[name] = path
	}
	t.Setenv("PATH", t.TempDir())
	p := n.serve()
	log := p.log()
	for _, want := range []string{"Mode cannot run on this host", `instead="userspace"`} {
		if !strings.Contains(log, want) {
			t.Errorf("it does not say %q:\n%s", want, log)
		}
	}
	page, err := p.get("/metrics")
	do(t, err)
	said := false
	for line := range strings.Lines(page) {
		said = said || strings.HasPrefix(line, "kubeproxy_mode_info{") && strings.Contains(line, "userspace")
	}
	if !said {
		t.Errorf("no metric says that the mode is userspace")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, from := range []string{"pod1", "pod3", "pod5", netlab.Client, netlab.Node1} {
		for _, to := range []netip.AddrPort{labTarget, endpoint(netlab.Node1, 30080)} {
			if from == "pod5" && to == labTarget {
				continue // the other node has no proxy
			}
			if _, err := n.converse(from, to, 5000, timeout, rnd); err != nil {
				t.Errorf("%s → %s: %v", from, to, err)
			}
		}
	}
	p.stop()
	clean := n.start("--cleanup")
	if code := clean.end(0); code != 0 {
		t.Errorf("--cleanup: exit code %d:\n%s", code, clean.log())
	}
	for name, args := range map[string][]string{"nft": {"list", "tables"}, "ip": {"addr"}} {
		out, err := n.Command(netlab.Node1, look[name], args...).CombinedOutput()
		if s := string(out); err != nil || strings.Contains(s, "userspace") || strings.Contains(s, labIP+"/") {
			t.Errorf("%s after --cleanup (%v):\n%s", name, err, s)
		}
	}
}

// TestFallbackReported: the cluster gets an event for each fallback. The API server of this test
// accepts events, and has nothing else.
func TestFallbackReported(t *testing.T) {
	n := newNodeLab(t)
	t.Setenv("PATH", t.TempDir())
	t.Setenv(noIPVS, "1")
	events := make(chan string, 100)
	n.On(netlab.Node1, func() {
		l, err := net.Listen("tcp", "127.0.0.1:8001")
		do(t, err)
		api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil && r.Method == http.MethodPost &&
				strings.HasSuffix(r.URL.Path, "/events") {
				select {
				case events <- string(body):
				default:
				}
			}
			http.Error(w, "there is nothing here", http.StatusNotFound)
		})}
		go api.Serve(l)
		t.Cleanup(func() { api.Close() })
	})
	p := n.program("--proxy-mode=ipvs", "--hostname-override=node1", "--master=http://127.0.0.1:8001",
		"--cluster-cidr=10.1.0.0/16", "--conntrack-max-per-core=0", "--conntrack-min=0")
	defer p.end(syscall.SIGKILL)
	left := []string{"uses mode iptables, because mode ipvs is unavailable",
		"uses mode userspace, because mode iptables is unavailable"}
	for end := time.After(timeout); len(left) > 0; {
		select {
		case e := <-events:
			left = slices.DeleteFunc(left, func(s string) bool {
				return strings.Contains(e, "KubeProxyModeFallback") && strings.Contains(e, s)
			})
		case <-end:
			t.Fatalf("no event reports %q:\n%s", left, p.log())
		}
	}
}
