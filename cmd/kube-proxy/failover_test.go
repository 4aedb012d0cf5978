//go:build linux

package main

import (
	"errors"
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

// filter counts, drops or rejects packets that come into a host.
func filter(host string, rules ...string) fault {
	begin := "nft 'add table inet cut; add chain inet cut c { type filter hook prerouting priority -400; }"
	for _, rule := range rules {
		begin += "; add rule inet cut c " + rule
	}
	return script(host, begin+"'", "nft delete table inet cut")
}

// nodeDead has node2 drop all packets, and count the first ones of clients.
var nodeDead = filter(netlab.Node2, "ip saddr 10.1.1.12 tcp flags == syn counter", "drop")

// lost returns what nodeDead counted.
func (n *failoverLab) lost() string {
	n.t.Helper()
	out, err := n.Command(netlab.Node2, "nft", "list", "table", "inet", "cut").Output()
	do(n.t, err)
	return regexp.MustCompile(`counter packets \d+`).FindString(string(out))
}

// outcomes has how many connections each server, or class of errors, had.
type outcomes map[string]int

// dials connects a number of times, one after another.
func (n *failoverLab) dials(times int) outcomes {
	n.t.Helper()
	all := outcomes{}
	for range times {
		all[n.dialOnce(patience)]++
	}
	return all
}

// crowd connects 30 times at once. One of three endpoints is left out once in 190,000 times.
func (n *failoverLab) crowd(patience time.Duration) outcomes {
	n.t.Helper()
	ends := make(chan string)
	for range crowd {
		go func() { ends <- n.dialOnce(patience) }()
	}
	all := outcomes{}
	for range crowd {
		all[<-ends]++
	}
	return all
}

const crowd = 30

// A client repeats its first packet after 1 s and 3 s. With patience it waits for the second time.
const (
	patience   = 8 * time.Second
	impatience = 1500 * time.Millisecond
)

func (n *failoverLab) dialOnce(within time.Duration) string {
	r, err := n.Dial("pod2", netlab.TCP, n.vip, netlab.DialOptions{Timeout: within})
	if err == nil {
		return r.Server
	}
	for _, class := range []error{netlab.ErrRefused, netlab.ErrTimeout, netlab.ErrUnreachable} {
		if errors.Is(err, class) {
			return class.Error()
		}
	}
	return err.Error()
}

// elsewhere returns how many ended at the endpoints that no test cuts off.
func (o outcomes) elsewhere() int { return o["pod1"] + o["sink"] }

// awaitPod4 connects until pod4 answers.
func (n *failoverLab) awaitPod4() {
	n.t.Helper()
	until(n.t, func() string {
		if all := n.dials(20); all["pod4"] == 0 {
			return fmt.Sprintf("after the return: %v", all)
		}
		return ""
	})
}

// awaitAvoidance waits until rules that avoid an endpoint are in force.
func (p *labProgram) awaitAvoidance() {
	p.t.Helper()
	until(p.t, func() string {
		if p.metric(avoidances) == 0 {
			return "no endpoint is avoided:\n" + p.log()
		}
		return ""
	})
}

// cutOff cuts node2 off, and has clients connect until the program finds it. No connection fails.
func (n *failoverLab) cutOff(p *labProgram) {
	n.t.Helper()
	nodeDead.begin(n)
	n.awaitNode(p)
}

func (n *failoverLab) awaitNode(p *labProgram) {
	n.t.Helper()
	until(n.t, func() string {
		all := n.crowd(patience)
		if all.elsewhere() != crowd {
			n.t.Errorf("while node2 is cut off: %v", all)
		}
		if !nodeUnreachable.MatchString(p.log()) {
			return fmt.Sprintf("the node is not unreachable after %v:\n%s", all, p.log())
		}
		return ""
	})
}

// avoidances is the metric that counts endpoints that new rules avoid.
const avoidances = "kubeproxy_failover_avoidance_duration_seconds_count"

// TestFailover: a node is cut off. No connection fails, new ones avoid it, status, why, trace,
// events and metrics say so; when it returns, it is used again (FO-03, FO-06, FO-09, FO-11, FO-15).
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, mode := range failoverModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			n := newFailoverLab(t, mode)
			p := n.serve("--failover=avoid")
			p.await(failoverOn)
			if all := n.crowd(patience); all["pod1"] == 0 || all["pod4"] == 0 || all["sink"] == 0 {
				t.Fatalf("before: %v", all)
			}
			nodeDead.begin(n)
			if all := n.dials(crowd); all.elsewhere() != crowd {
				t.Errorf("while it is cut off: %v", all)
			}
			p.await(nodeUnreachable)
			p.awaitAvoidance()
			before := n.lost()
			if all := n.dials(crowd); all.elsewhere() != crowd {
				t.Errorf("while it is avoided: %v", all)
			}
			if after := n.lost(); after != before {
				t.Errorf("first packets to the avoided node: %s, before %s", after, before)
			}
			n.says("status", "node2 is unreachable from here since", "1 endpoint avoided")
			n.says("why lab/web", "avoided: its node is unreachable from here")
			n.says("backends lab/web", "avoided: its node is unreachable from here")
			n.says("events", "avoided: unreachable from here")
			n.says("trace 10.1.1.12 lab/web", "10.1.1.11", "172.18.0.254")
			n.says("probe lab/web", "10.1.2.14:8080", "silent", "answers")
			for _, name := range []string{`kubeproxy_failover_avoided_endpoints{reason="node"}`,
				"kubeproxy_failover_unreachable_nodes", avoidances} {
				if v := p.metric(name); v != 1 {
					t.Errorf("%s is %v, want 1", name, v)
				}
			}
			nodeDead.end(n)
			p.await(regexp.MustCompile("Node answers again"))
			n.awaitPod4()
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
	t.Parallel()
	// A firewall in a pod, as a NetworkPolicy has it written: node2's packets to its pod pass it.
	pod := func(rule string) fault { return filter("pod4", "tcp dport 8080 "+rule) }
	for _, c := range []struct {
		name  string
		cause fault
		// fails is how connections to pod4 may fail; judged counts verdicts about it.
		fails, judged string
		avoided       bool
		status, why   string
	}{
		// Linux ends a connect for this answer, unless it comes while the packet is sent.
		{"the pod is gone", script(netlab.Node2, "ip rule add prio 10 to 10.1.2.14 unreachable",
			"ip rule del prio 10"), netlab.ErrUnreachable.Error(), avoidances, true,
			"10.1.2.14:8080 is unreachable from here", "10.1.2.14:8080  no route: "},
		{"nothing listens", pod("reject with tcp reset"), netlab.ErrRefused.Error(), "", false,
			"no problems", "10.1.2.14:8080  refuses: nothing listens there"},
		{"a policy drops one client", pod("ip saddr 10.1.1.12 drop"), netlab.ErrTimeout.Error(),
			`kubeproxy_failover_probes_total{result="answers"}`, false, "no problems",
			"all 3 probed endpoints answer this node"},
		{"a policy drops pods and nodes", pod("drop"), netlab.ErrTimeout.Error(),
			`kubeproxy_failover_probes_total{result="silent"}`, false,
			"10.1.2.14:8080 is silent for clients and not avoided", "10.1.2.14:8080  silent: no answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newFailoverLab(t, "nftables")
			p := n.serve("--failover=avoid")
			p.await(failoverOn)
			c.cause.begin(n)
			within := impatience
			if c.avoided {
				within = patience
			}
			until(t, func() string {
				all := n.crowd(within)
				if all.elsewhere()+all[c.fails] != crowd {
					t.Errorf("before the verdict: %v", all)
				}
				if c.judged != "" && p.metric(c.judged) == 0 {
					return c.judged + " is 0"
				}
				if _, out := n.query("status"); !strings.Contains(out, c.status) {
					return fmt.Sprintf("status has no %q:\n%s", c.status, out)
				}
				return ""
			})
			all := n.crowd(within)
			if all.elsewhere()+all[c.fails] != crowd || c.avoided == (all[c.fails] > 0) {
				t.Errorf("after the verdict: %v", all)
			}
			n.says("status", c.status)
			n.says("why lab/web", c.why)
			if c.avoided {
				c.cause.end(n)
				n.awaitPod4()
			}
			p.end(syscall.SIGTERM)
		})
	}
}

// TestFailoverAllSilent: where no endpoint answers, none is avoided, and an API server or node that
// answers is no reason to reject connections (FO-06).
func TestFailoverAllSilent(t *testing.T) {
	t.Parallel()
	n := newFailoverLab(t, "nftables")
	n.apply("web", serviceManifest("web", "10.96.0.10", "10.1.2.14@node2", "10.1.2.15@node2"))
	n.apply("other", serviceManifest("other", "10.96.0.11", "172.18.0.254@sink"))
	p := n.serve("--failover=avoid")
	p.await(failoverOn)
	nodeDead.begin(n)
	for range 2 {
		if all := n.crowd(2 * time.Second); all[netlab.ErrTimeout.Error()] != crowd {
			t.Errorf("connections: %v", all)
		}
	}
	nodeDead.end(n)
	n.awaitPod4()
	p.end(syscall.SIGTERM)
}

// TestFailoverRestart: a new process knows nothing of what was avoided, finds it out at the next
// waiting client, and no connection fails. A killed one leaves the rules of notices.
func TestFailoverRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  syscall.Signal
		mode string
	}{
		"in another mode": {syscall.SIGTERM, "iptables"},
		"after a crash":   {syscall.SIGKILL, "nftables"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newFailoverLab(t, "nftables")
			p := n.serve("--failover=avoid")
			p.await(failoverOn)
			n.cutOff(p)
			p.end(c.end)
			n.mode = c.mode
			p = n.serve("--failover=avoid")
			p.await(failoverOn)
			n.awaitNode(p)
			p.end(syscall.SIGTERM)
		})
	}
}

// TestFailoverRescue: in rescue, waiting clients are rescued, those that come later too, and the
// table stays (FO-11). A rescued client may get the silent endpoint again, and few do so until they
// lose patience; without a rescue a third does.
func TestFailoverRescue(t *testing.T) {
	t.Parallel()
	n := newFailoverLab(t, "nftables")
	p := n.serve("--failover=rescue")
	p.await(failoverOn)
	nodeDead.begin(n)
	for range 2 {
		before := n.lost()
		all := n.crowd(patience)
		timeouts := all[netlab.ErrTimeout.Error()]
		if all.elsewhere()+timeouts != crowd || timeouts > crowd/10 {
			t.Errorf("connections: %v", all)
		}
		if n.lost() == before {
			t.Error("no client met the silent endpoint")
		}
	}
	n.says("backends lab/web", "3 in use")
	n.says("status", "1 endpoint affected")
	p.end(syscall.SIGTERM)
}

// TestFailoverOff: without the setting nothing is noticed, and connections to the node wait. Rules
// of an earlier process are removed (FO-17).
func TestFailoverOff(t *testing.T) {
	t.Parallel()
	n := newFailoverLab(t, "nftables")
	n.run(netlab.Node1, "nft", "add table ip kube-proxy-failover; add table ip6 kube-proxy-failover")
	p := n.serve()
	p.await(regexp.MustCompile("Removed.*table of failover"))
	nodeDead.begin(n)
	timeouts := netlab.ErrTimeout.Error()
	if all := n.crowd(patience); all[timeouts] == 0 || all.elsewhere()+all[timeouts] != crowd {
		t.Errorf("connections: %v", all)
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
	t.Parallel()
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
	n.cutOff(p)
	if all := n.crowd(patience); all.elsewhere() != crowd {
		t.Errorf("avoid: %v", all)
	}
	write("off")
	p.await(regexp.MustCompile("Failover is off"))
	until(t, func() string {
		if n.crowd(impatience)[netlab.ErrTimeout.Error()] > 0 {
			return ""
		}
		return "the endpoint is still avoided after failover was switched off"
	})
	nodeDead.end(n)
	p.end(syscall.SIGTERM)
}
