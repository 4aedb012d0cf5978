//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
)

// failoverLab has Service lab/web with endpoints on node1, on node2 and on sink, which stands for a
// third node. Commands cut them off.
type failoverLab struct {
	*nodeLab
	vip netip.AddrPort
}

// Lines of the log.
var (
	failoverOn      = regexp.MustCompile("Failover is on")
	nodeUnreachable = regexp.MustCompile("Node is unreachable from here")
)

// failoverModes are the modes that notice unanswered packets on this kernel.
var failoverModes = []string{"nftables", "iptables"}

func newFailoverLab(t *testing.T, mode string) *failoverLab {
	t.Helper()
	n := &failoverLab{newNodeLab(t), netip.MustParseAddrPort("10.96.0.10:80")}
	n.mode = mode
	n.run(netlab.Sink, "ip", "route", "replace", "10.1.1.0/24", "via", "172.18.0.2")
	n.Serve(netlab.TCP, 8080, "pod1", "pod4", netlab.Sink)
	for name, ip := range map[string]string{"node2": "172.18.0.3", "sink": "172.18.0.254"} {
		n.apply(name, fmt.Sprintf("kind: Node\nmetadata: {name: %s}\nstatus: {addresses: [{type: InternalIP, "+
			"address: %s}]}\n", name, ip))
	}
	n.apply("web", serviceManifest("web", "10.96.0.10", "10.1.1.11@node1", "10.1.2.14@node2", "172.18.0.254@sink"))
	return n
}

// serviceManifest is a Service with endpoints "address@node" at port 8080.
func serviceManifest(name, ip string, endpoints ...string) string {
	var all []string
	for _, e := range endpoints {
		a, node, _ := strings.Cut(e, "@")
		all = append(all, fmt.Sprintf("{addresses: [%s], nodeName: %s}", a, node))
	}
	return fmt.Sprintf("kind: Service\nmetadata: {name: %[1]s, namespace: lab}\nspec: {clusterIP: %[2]s, ports: "+
		"[{port: 80}]}\n---\nkind: EndpointSlice\nmetadata: {name: %[1]s, namespace: lab, labels: "+
		"{kubernetes.io/service-name: %[1]s}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints: [%[3]s]\n",
		name, ip, strings.Join(all, ", "))
}

// run runs a command in a host.
func (n *failoverLab) run(host, name string, args ...string) {
	n.t.Helper()
	if out, err := n.Command(host, name, args...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %s %v: %v\n%s", host, name, args, err, out)
	}
}

// fault is a way in which an endpoint stops to answer.
type fault struct {
	begin, end func(*failoverLab)
}

func script(host, begin, end string) fault {
	sh := func(text string) func(*failoverLab) {
		return func(n *failoverLab) { n.run(host, "sh", "-c", text) }
	}
	return fault{sh(begin), sh(end)}
}

// filter drops or rejects packets that come into a host.
func filter(host, rule string) fault {
	return script(host, "nft 'add table inet cut; add chain inet cut c { type filter hook prerouting priority "+
		"-400; }; add rule inet cut c "+rule+"'", "nft delete table inet cut")
}

// nodeDead has node2 drop all packets.
var nodeDead = filter(netlab.Node2, "drop")

// dials connects a number of times, and returns the slowest time, and how many connections each
// server had.
func (n *failoverLab) dials(times int) (slowest time.Duration, servers map[string]int) {
	n.t.Helper()
	return n.dialsFor(times, 8*time.Second)
}

func (n *failoverLab) dialsFor(times int, each time.Duration) (slowest time.Duration, servers map[string]int) {
	n.t.Helper()
	servers = map[string]int{}
	for range times {
		start := time.Now()
		r, err := n.Dial("pod2", netlab.TCP, n.vip, netlab.DialOptions{Timeout: each})
		if err != nil {
			r.Server = err.Error()
		}
		servers[r.Server]++
		slowest = max(slowest, time.Since(start))
	}
	return slowest, servers
}

// TestFailover: a node is cut off. No connection fails, new ones avoid it, status, why, trace,
// events and metrics say so; when it returns, it is used again (FO-03, FO-06, FO-09, FO-11, FO-15).
func TestFailover(t *testing.T) {
	for _, mode := range failoverModes {
		t.Run(mode, func(t *testing.T) {
			n := newFailoverLab(t, mode)
			p := n.serve("--failover=avoid")
			p.await(failoverOn)
			if _, servers := n.dials(30); servers["pod1"] == 0 || servers["pod4"] == 0 || servers["sink"] == 0 {
				t.Fatalf("before: %v", servers)
			}
			nodeDead.begin(n)
			slowest, servers := n.dials(30)
			if servers["pod1"]+servers["sink"] != 30 {
				t.Errorf("while it is cut off: %v", servers)
			}
			t.Logf("slowest connect: %v", slowest)
			p.await(nodeUnreachable)
			if slowest, servers = n.dials(30); slowest > 500*time.Millisecond || servers["pod1"]+servers["sink"] != 30 {
				t.Errorf("while it is avoided: %v, slowest %v", servers, slowest)
			}
			n.says("status", "node2 is unreachable from here since", "1 endpoint avoided")
			n.says("why lab/web", "avoided: its node is unreachable from here")
			n.says("backends lab/web", "avoided: its node is unreachable from here")
			n.says("events", "avoided: unreachable from here")
			n.says("trace 10.1.1.12 lab/web", "10.1.1.11", "172.18.0.254")
			n.says("probe lab/web", "10.1.2.14:8080", "silent", "answers")
			page, err := p.get("/metrics")
			do(t, err)
			for _, want := range []string{`kubeproxy_failover_avoided_endpoints{reason="node"} 1`,
				"kubeproxy_failover_unreachable_nodes 1", "kubeproxy_failover_avoidance_duration_seconds_count 1"} {
				if !strings.Contains(page, want) {
					t.Errorf("metrics lack %s", want)
				}
			}
			nodeDead.end(n)
			p.await(regexp.MustCompile("Node answers again"))
			until(t, func() string {
				if _, servers := n.dials(20); servers["pod4"] == 0 {
					return fmt.Sprintf("after the return: %v", servers)
				}
				return ""
			})
			p.end(syscall.SIGTERM)
		})
	}
}

// says fails the test unless the output of a query has the texts.
func (n *failoverLab) says(query string, texts ...string) {
	n.t.Helper()
	_, out := n.query(strings.Fields(query)...)
	for _, want := range texts {
		if !strings.Contains(out, want) {
			n.t.Errorf("%s has no %q:\n%s", query, want, out)
		}
	}
}

// TestFailoverCauses has one cause of silence each, and what becomes of the connections (FO-04 to
// FO-07).
func TestFailoverCauses(t *testing.T) {
	// A firewall in a pod, as a NetworkPolicy has it written: node2's packets to its pod pass it.
	pod := func(rule string) fault { return filter("pod4", "tcp dport 8080 "+rule) }
	for _, c := range []struct {
		name  string
		cause fault
		// fails: connections to pod4 fail. avoided: after a while, no new connection goes there.
		fails, avoided bool
		status         string
	}{
		{"the pod is gone", script(netlab.Node2, "ip rule add prio 10 to 10.1.2.14 unreachable",
			"ip rule del prio 10"), false, true, "10.1.2.14:8080 is unreachable from here"},
		{"nothing listens", pod("reject with tcp reset"), true, false, "no problems"},
		{"a policy drops one client", pod("ip saddr 10.1.1.12 drop"), true, false, "no problems"},
		{"a policy drops pods and nodes", pod("drop"), true, false,
			"10.1.2.14:8080 is silent for clients and not avoided"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newFailoverLab(t, "nftables")
			p := n.serve("--failover=avoid")
			p.await(failoverOn)
			c.cause.begin(n)
			for range 10 {
				n.Dial("pod2", netlab.TCP, n.vip, netlab.DialOptions{Timeout: 1500 * time.Millisecond})
			}
			_, servers := n.dialsFor(12, 1500*time.Millisecond)
			failed := 12 - servers["pod1"] - servers["sink"]
			if c.avoided && failed > 0 || c.fails && failed == 0 || servers["pod4"] > 0 {
				t.Errorf("connections: %v", servers)
			}
			n.says("status", c.status)
			if c.avoided {
				c.cause.end(n)
				until(t, func() string {
					if _, servers := n.dials(20); servers["pod4"] == 0 {
						return fmt.Sprintf("after the return: %v", servers)
					}
					return ""
				})
			}
			p.end(syscall.SIGTERM)
		})
	}
}

// TestFailoverAllSilent: where no endpoint answers, none is avoided, and an API server or node that
// answers is no reason to reject connections (FO-06).
func TestFailoverAllSilent(t *testing.T) {
	n := newFailoverLab(t, "nftables")
	n.apply("web", serviceManifest("web", "10.96.0.10", "10.1.2.14@node2", "10.1.2.15@node2"))
	n.apply("other", serviceManifest("other", "10.96.0.11", "172.18.0.254@sink"))
	p := n.serve("--failover=avoid")
	p.await(failoverOn)
	nodeDead.begin(n)
	n.dialsFor(3, 2*time.Second)
	nodeDead.end(n)
	until(t, func() string {
		if _, servers := n.dials(10); servers["pod4"] == 0 {
			return fmt.Sprintf("after the return: %v", servers)
		}
		return ""
	})
	p.end(syscall.SIGTERM)
}

// TestFailoverRestart: a new process knows nothing of what was avoided, finds it out at the next
// waiting client, and no connection fails.
func TestFailoverRestart(t *testing.T) {
	n := newFailoverLab(t, "nftables")
	p := n.serve("--failover=avoid")
	p.await(failoverOn)
	nodeDead.begin(n)
	n.dials(15)
	p.await(nodeUnreachable)
	p.end(syscall.SIGTERM)
	n.mode = "iptables"
	p = n.serve("--failover=avoid")
	p.await(failoverOn)
	if _, servers := n.dials(15); servers["pod1"]+servers["sink"] != 15 {
		t.Errorf("after a restart in another mode: %v", servers)
	}
	p.await(nodeUnreachable)
	p.end(syscall.SIGTERM)
}

// TestFailoverRescue: in rescue, waiting clients are rescued, and the table stays (FO-11).
func TestFailoverRescue(t *testing.T) {
	n := newFailoverLab(t, "nftables")
	p := n.serve("--failover=rescue")
	p.await(failoverOn)
	nodeDead.begin(n)
	slowest, servers := n.dials(15)
	if servers["pod1"]+servers["sink"] != 15 {
		t.Errorf("connections: %v", servers)
	}
	t.Logf("slowest connect: %v", slowest)
	n.says("backends lab/web", "3 in use")
	n.says("status", "1 endpoint affected")
	p.end(syscall.SIGTERM)
}

// TestFailoverOff: without the setting nothing is noticed, and connections to the node wait. Rules
// of an earlier process are removed (FO-17).
func TestFailoverOff(t *testing.T) {
	n := newFailoverLab(t, "nftables")
	n.run(netlab.Node1, "nft", "add table ip kube-proxy-failover; add table ip6 kube-proxy-failover")
	p := n.serve()
	p.await(regexp.MustCompile("Removed.*table of failover"))
	nodeDead.begin(n)
	failed := 0
	for range 12 {
		_, err := n.Dial("pod2", netlab.TCP, n.vip, netlab.DialOptions{Timeout: 2500 * time.Millisecond})
		if err != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no connection met the silent endpoint")
	}
	out, err := n.Command(netlab.Node1, "nft", "list", "tables").Output()
	do(t, err)
	if strings.Contains(string(out), "failover") {
		t.Errorf("the kernel has rules of failover: %s", out)
	}
	p.end(syscall.SIGTERM)
}

// TestFailoverReload: failover is switched on, to rescue and off while the process runs (FO-01).
func TestFailoverReload(t *testing.T) {
	n := newFailoverLab(t, "nftables")
	file := filepath.Join(t.TempDir(), "config.yaml")
	write := func(value string) {
		do(t, os.WriteFile(file+".new", []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: "+
			"KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.1.0.0/16\nfailover: "+value+"\n"), 0o600))
		do(t, os.Rename(file+".new", file))
	}
	write("off")
	p := n.program("--config="+file, "--hostname-override=node1", "--manifests="+n.dir,
		"--admin-socket="+filepath.Join(n.dir, "admin.sock"))
	p.await(allWritten)
	write("avoid")
	p.await(failoverOn)
	nodeDead.begin(n)
	n.dials(20)
	p.await(nodeUnreachable)
	if _, servers := n.dials(20); servers["pod1"]+servers["sink"] != 20 {
		t.Errorf("avoid: %v", servers)
	}
	write("off")
	p.await(regexp.MustCompile("Failover is off"))
	until(t, func() string {
		if _, err := n.Dial("pod2", netlab.TCP, n.vip, netlab.DialOptions{Timeout: time.Second}); err != nil {
			return ""
		}
		return "the endpoint is still avoided after failover was switched off"
	})
	nodeDead.end(n)
	p.end(syscall.SIGTERM)
}
