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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// failoverLab has Service lab/web with endpoints on node1, on node2 and on sink, which stands for a
// third node. Commands cut them off.
type failoverLab struct {
	*nodeLab
	vip  netip.AddrPort
	args []string // of the program, for its mode
}

// Lines of the log.
var (
	failoverOn      = regexp.MustCompile("Failover is on")
	nodeUnreachable = regexp.MustCompile("Node is unreachable from here")
)

// failoverModes are the modes that notice unanswered packets.
var failoverModes = []string{"nftables", "iptables", "ipvs", "ebpf"}

// inFailoverModes runs f with a lab of each mode.
func inFailoverModes(t *testing.T, f func(*testing.T, *failoverLab)) {
	t.Helper()
	t.Parallel()
	for _, mode := range failoverModes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f(t, newFailoverLab(t, mode))
		})
	}
}

// labs counts labs with a name.
var labs atomic.Uint32

// newModeLab is a lab whose program runs in the mode, with the arguments that its lab needs.
func newModeLab(t testing.TB, mode string) (n *failoverLab) {
	t.Helper()
	n = &failoverLab{vip: netip.MustParseAddrPort("10.96.0.10:80")}
	switch mode {
	case "ipvs":
		needIPVS(t)
	case "ebpf":
		bpffs := t.TempDir()
		do(t, unix.Mount("bpf", bpffs, "bpf", 0, ""))
		t.Cleanup(func() { do(t, unix.Unmount(bpffs, 0)) })
		n.args = []string{"--ebpf-bpffs=" + bpffs}
	}
	lab := netlab.Options{}
	if mode == "ebpf" { // /run/netns has the namespaces of pods, where runtimes put them
		lab = netlab.Options{Cgroup: true, Named: true, Name: fmt.Sprintf("failover-%d-%d", os.Getpid(), labs.Add(1))}
	}
	n.nodeLab = newNodeLabWith(t, lab)
	if mode == "ebpf" {
		n.args = append(n.args, "--ebpf-cgroup="+n.Cgroup(netlab.Node1))
	}
	n.mode = mode
	n.run(netlab.Sink, "ip", "route", "replace", "10.1.1.0/24", "via", "172.18.0.2")
	n.node("node2", "172.18.0.3")
	n.node("sink", "172.18.0.254")
	return n
}

// node adds a Node.
func (n *failoverLab) node(name, ip string) {
	n.t.Helper()
	n.apply(name, nodeManifest(name, ip))
}

func nodeManifest(name, ip string) string {
	return fmt.Sprintf("kind: Node\nmetadata: {name: %s}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n",
		name, ip)
}

// serve starts the program and waits until it serves.
func (n *failoverLab) serve(args ...string) *labProgram {
	n.t.Helper()
	p := n.nodeLab.serve(append(args, n.args...)...)
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("the program:\n%s", p.log())
		}
	})
	return p
}

// serveFailover serves, and waits until failover is on.
func (n *failoverLab) serveFailover(args ...string) *labProgram {
	n.t.Helper()
	p := n.serve(args...)
	p.await(failoverOn)
	return p
}

func newFailoverLab(t *testing.T, mode string) *failoverLab {
	t.Helper()
	n := newModeLab(t, mode)
	n.Serve(netlab.TCP, 8080, "pod1", "pod4", netlab.Sink)
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
		"[{name: http, port: 80, protocol: TCP}]}\n---\nkind: EndpointSlice\nmetadata: {name: %[1]s, namespace: "+
		"lab, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: IPv4\nports: "+
		"[{name: http, port: 8080, protocol: TCP}]\nendpoints: [%[3]s]\n",
		name, ip, strings.Join(all, ", "))
}

// unmoved checks some times that another client's connections reach all endpoints, pod4 too.
func (n *failoverLab) unmoved(times int) {
	n.t.Helper()
	for range times {
		all := n.crowd(patience)
		if all.elsewhere()+all["pod4"] != crowd || all["pod4"] == 0 {
			n.t.Errorf("connections of another client: %v", all)
		}
	}
	n.says("backends lab/web", "3 in use")
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

// linkDown takes the port of node2 at the switch down: the node loses its carrier, as with a pulled
// cable, and keeps its routes.
var linkDown = script("switch", "ip link set "+netlab.Node2+" down", "ip link set "+netlab.Node2+" up")

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
	r, err := n.dial(n.vip, within)
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

// dial connects from pod2. In mode ebpf a rescue ends connect(), and the program tries again.
func (n *failoverLab) dial(to netip.AddrPort, within time.Duration) (r netlab.Reply, err error) {
	for end := time.Now().Add(within); ; {
		r, err = n.Dial("pod2", netlab.TCP, to, netlab.DialOptions{Timeout: max(time.Until(end), time.Millisecond)})
		if n.mode != "ebpf" || !errors.Is(err, unix.ECONNABORTED) {
			return r, err
		}
	}
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
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=avoid")
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
		p.await(regexp.MustCompile("Node is no longer unreachable"))
		n.awaitPod4()
		p.end(syscall.SIGTERM)
	})
}

// says fails the test unless the output of a query has the texts, which may be folded there.
func (n *failoverLab) says(query string, texts ...string) {
	n.t.Helper()
	_, out := n.query(strings.Fields(query)...)
	for _, want := range texts {
		if !strings.Contains(out, want) && !strings.Contains(unfolded(out), want) {
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
			inFailoverModes(t, func(t *testing.T, n *failoverLab) {
				p := n.serveFailover("--failover=avoid")
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
		})
	}
}

// TestFailoverAllSilent: where no endpoint answers, none is avoided, and an API server or node that
// answers is no reason to reject connections (FO-06).
func TestFailoverAllSilent(t *testing.T) { inFailoverModes(t, allSilent) }

func allSilent(t *testing.T, n *failoverLab) {
	n.apply("web", serviceManifest("web", "10.96.0.10", "10.1.2.14@node2", "10.1.2.15@node2"))
	n.apply("other", serviceManifest("other", "10.96.0.11", "172.18.0.254@sink"))
	p := n.serveFailover("--failover=avoid")
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
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=avoid")
		n.cutOff(p)
		p.end(syscall.SIGKILL)
		p = n.serveFailover("--failover=avoid")
		n.awaitNode(p)
		p.end(syscall.SIGTERM)
		if n.mode == "nftables" {
			n.mode = "iptables"
		} else {
			n.mode = "nftables"
		}
		p = n.serveFailover("--failover=avoid")
		n.awaitNode(p)
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverRescue: in rescue, waiting clients are rescued before each packet that they repeat,
// those that come later too, and the table stays (FO-11). A client gets the silent endpoint again
// each time with a probability of a third. IPVS avoids the endpoint while clients wait.
func TestFailoverRescue(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=rescue")
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
			until(t, func() string {
				if _, out := n.query("backends", "lab/web"); !strings.Contains(out, "3 in use") {
					return "no client waits, and an endpoint is avoided:\n" + out
				}
				return ""
			})
		}
		n.says("status", "1 endpoint affected")
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverHalf: three of six nodes are cut off, then all; no connection fails while three are
// left, and no further node is avoided when none answers (FO-07).
func TestFailoverHalf(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		var endpoints []string
		for i := range 6 {
			ip := fmt.Sprintf("172.18.0.%d", 200+i)
			n.run(netlab.Sink, "ip", "addr", "add", ip+"/32", "dev", netlab.Uplink)
			n.node(fmt.Sprintf("far%d", i), ip)
			endpoints = append(endpoints, fmt.Sprintf("%s@far%d", ip, i))
		}
		n.apply("web", serviceManifest("web", "10.96.0.10", endpoints...))
		p := n.serveFailover("--failover=avoid")
		filter(netlab.Sink, "ip daddr 172.18.0.200-172.18.0.202 drop").begin(n)
		until(t, func() string {
			if all := n.crowd(patience); all["sink"] != crowd {
				t.Errorf("while half of the nodes are cut off: %v", all)
			}
			if v := p.metric("kubeproxy_failover_unreachable_nodes"); v != 3 {
				return fmt.Sprintf("%v nodes are unreachable, want 3:\n%s", v, p.log())
			}
			return ""
		})
		n.run(netlab.Sink, "nft", "add rule inet cut c ip daddr 172.18.0.200-172.18.0.205 drop")
		for range 4 {
			n.crowd(impatience)
		}
		if v := p.metric("kubeproxy_failover_unreachable_nodes"); v > 3 {
			t.Errorf("%v nodes are unreachable while none answers, want 3", v)
		}
		n.run(netlab.Sink, "nft", "delete table inet cut")
		until(t, func() string {
			if v := p.metric("kubeproxy_failover_unreachable_nodes"); v > 0 {
				return fmt.Sprintf("%v nodes are still unreachable", v)
			}
			return ""
		})
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverLink: the link of a node goes down; no connection fails, and the node is used again
// when it comes up.
func TestFailoverLink(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=avoid")
		linkDown.begin(n)
		n.awaitNode(p)
		p.awaitAvoidance()
		if all := n.dials(crowd); all.elsewhere() != crowd {
			t.Errorf("while it is avoided: %v", all)
		}
		linkDown.end(n)
		n.awaitPod4()
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverFlapping: a node goes and comes each second; no connection fails.
func TestFailoverFlapping(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=avoid")
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for dead := true; ; dead = !dead {
				if dead {
					nodeDead.begin(n)
				} else {
					nodeDead.end(n)
				}
				select {
				case <-stop:
					if dead {
						nodeDead.end(n)
					}
					return
				case <-time.After(time.Second):
				}
			}
		}()
		for range 8 {
			if all := n.crowd(patience); all.elsewhere()+all["pod4"] != crowd {
				t.Errorf("while node2 flaps: %v", all)
			}
		}
		close(stop)
		<-done
		n.awaitPod4()
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverSlowAccept: the program of an endpoint accepts slowly, so that its kernel drops first
// packets for a full queue. It stays in use, or returns, and its node is never avoided.
func TestFailoverSlowAccept(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		const port = 8090
		n.Serve(netlab.TCP, port, "pod1", netlab.Sink)
		slow := n.slow("pod4", port)
		defer slow()
		n.apply("web", strings.ReplaceAll(serviceManifest("web", "10.96.0.10", "10.1.1.11@node1", "10.1.2.14@node2",
			"172.18.0.254@sink"), "8080", fmt.Sprint(port)))
		p := n.serveFailover("--failover=avoid")
		for range 3 { // with a full queue, Linux answers some clients, and then forgets them
			all := n.crowd(patience)
			if all.elsewhere()+all[slowly]+all[netlab.ErrTimeout.Error()] != crowd {
				t.Errorf("connections: %v", all)
			}
		}
		until(t, func() string {
			if all := n.dials(20); all[slowly] == 0 {
				return fmt.Sprintf("the slow program gets no connections: %v", all)
			}
			return ""
		})
		if nodeUnreachable.MatchString(p.log()) {
			t.Errorf("the node of a slow program is unreachable:\n%s", p.log())
		}
		p.end(syscall.SIGTERM)
	})
}

// slowly is what the slow program says.
const slowly = "slowly"

// slow runs a program that accepts a connection each 50 ms, with the shortest queue.
func (n *failoverLab) slow(host string, port int) (stop func()) {
	n.t.Helper()
	var fd int
	var err error
	n.On(host, func() {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Port: port}), unix.Listen(fd, 0))
		}
	})
	do(n.t, err)
	listener := os.NewFile(uintptr(fd), "slow")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for raw, err := listener.SyscallConn(); err == nil; time.Sleep(50 * time.Millisecond) {
			err = raw.Read(func(fd uintptr) bool {
				c, _, failed := unix.Accept4(int(fd), unix.SOCK_CLOEXEC)
				if failed == nil {
					_, _ = unix.Write(c, []byte(slowly+" 0.0.0.0:1 0.0.0.0:1\n"))
					unix.Close(c)
				}
				return failed != unix.EAGAIN
			})
		}
	}()
	return func() {
		listener.Close()
		<-done
	}
}

// TestFailoverUnreadable: a Node that cannot be read, as while the API server is away, is not
// avoided; its clients are, once it can be read (FO-05).
func TestFailoverUnreadable(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		n.remove("node2")
		p := n.serveFailover("--failover=avoid")
		nodeDead.begin(n)
		for range 2 {
			all := n.crowd(impatience)
			if all.elsewhere()+all[netlab.ErrTimeout.Error()] != crowd {
				t.Errorf("connections: %v", all)
			}
		}
		if nodeUnreachable.MatchString(p.log()) {
			t.Errorf("a node that is not known is unreachable:\n%s", p.log())
		}
		n.node("node2", "172.18.0.3")
		until(t, func() string {
			n.crowd(impatience)
			if !nodeUnreachable.MatchString(p.log()) {
				return "the node is not unreachable:\n" + p.log()
			}
			return ""
		})
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverWithoutAPIServer: the API server is away while a node is avoided. The node stays
// avoided, is used again after its return, and is found unreachable again without the API server,
// because its Node was read before; the event was sent (FO-03, FO-09, FO-14).
func TestFailoverWithoutAPIServer(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		serveAPI := func() *labAPI {
			api := n.api()
			for _, doc := range strings.Split(serviceManifest("web", "10.96.0.10", "10.1.1.11@node1", "10.1.2.14@node2",
				"172.18.0.254@sink")+"---\n"+nodeManifest("node2", "172.18.0.3")+"---\n"+
				nodeManifest("sink", "172.18.0.254"), "---\n") {
				api.add(t, doc)
			}
			return api
		}
		api := serveAPI()
		p := n.serve("--failover=avoid", "--manifests=", "--master=http://"+labAPIAt,
			"--kube-api-content-type=application/json")
		p.await(failoverOn)
		n.cutOff(p)
		p.awaitAvoidance()
		until(t, func() string {
			if !api.hasEvent("KubeProxyNodeUnreachable") {
				return "the API server has no event"
			}
			return ""
		})
		api.stop()
		if all := n.crowd(patience); all.elsewhere() != crowd {
			t.Errorf("without the API server, while node2 is cut off: %v", all)
		}
		n.says("status", "node2 is unreachable from here since", "1 endpoint avoided")
		nodeDead.end(n)
		n.awaitPod4()
		nodeDead.begin(n)
		unreachable := func() string {
			if all := n.crowd(patience); all.elsewhere() != crowd {
				t.Errorf("while node2 is cut off again: %v", all)
			}
			if v := p.metric("kubeproxy_failover_unreachable_nodes"); v != 1 {
				return fmt.Sprintf("%v nodes are unreachable, want 1:\n%s", v, p.log())
			}
			return ""
		}
		until(t, unreachable)
		serveAPI()
		until(t, unreachable)
		nodeDead.end(n)
		n.awaitPod4()
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverHostileClient: the packets of one client die on their way, so he causes notices
// without end. No endpoint is avoided, the connections of another client stay as they are, and a
// dead node is found meanwhile (FO-05, FO-10).
func TestFailoverHostileClient(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=avoid")
		n.run("pod3", "sysctl", "-qw", "net.ipv4.ip_default_ttl=2") // his packets end at node2,
		filter("pod3", "icmp type time-exceeded drop").begin(n)     // and no ICMP message ends his wait
		stop, done := make(chan struct{}), make(chan struct{})
		var clients sync.WaitGroup
		go func() {
			defer close(done)
			for {
				for range crowd {
					clients.Go(func() {
						_, _ = n.Dial("pod3", netlab.TCP, n.vip, netlab.DialOptions{Timeout: 2 * impatience})
					})
				}
				select {
				case <-stop:
					clients.Wait()
					return
				case <-time.After(impatience):
				}
			}
		}()
		until(t, func() string {
			if v := p.metric(`kubeproxy_failover_probes_total{result="answers"}`); v < 3 {
				return fmt.Sprintf("%v probes were answered, want 3", v)
			}
			return ""
		})
		n.unmoved(3)
		n.says("status", "no problems")
		if v := p.metric(avoidances); v != 0 {
			t.Errorf("%v endpoints were avoided, want none", v)
		}
		n.cutOff(p)
		p.awaitAvoidance()
		nodeDead.end(n)
		n.awaitPod4()
		close(stop)
		<-done
		p.end(syscall.SIGTERM)
	})
}

// TestFailoverReset: established connections to a dead node are reset, though their clients only
// wait, and those to other nodes stay (FO-13).
func TestFailoverReset(t *testing.T) {
	inFailoverModes(t, func(t *testing.T, n *failoverLab) {
		p := n.serveFailover("--failover=avoid", "--failover-reset")
		open := map[string][]*netlab.Conn{}
		for len(open["pod4"]) < 2 || len(open["pod1"]) < 2 || len(open["sink"]) < 2 {
			c, err := n.Open("pod2", netlab.TCP, n.vip, netlab.DialOptions{Timeout: patience})
			do(t, err)
			defer c.Close()
			open[c.First().Server] = append(open[c.First().Server], c)
		}
		n.cutOff(p)
		// The control plane removes the endpoint only now.
		n.apply("web", serviceManifest("web", "10.96.0.10", "10.1.1.11@node1", "172.18.0.254@sink"))
		for server, all := range open {
			for _, c := range all {
				if server != "pod4" {
					_, err := c.Exchange()
					do(t, err)
					continue
				}
				err := c.Await()
				if n.mode == "ebpf" && errors.Is(err, netlab.ErrTimeout) {
					// It began before the programs: without CAP_NET_RAW its next packet ends it.
					_, err = c.Exchange()
				}
				if !errors.Is(err, netlab.ErrReset) {
					t.Errorf("a connection to the dead node ends with %v, want a reset", err)
				}
			}
		}
		if v := p.metric("kubeproxy_failover_reset_connections_total"); int(v) != len(open["pod4"]) {
			t.Errorf("%v connections were reset, want %d", v, len(open["pod4"]))
		}
		p.end(syscall.SIGTERM)
	})
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
