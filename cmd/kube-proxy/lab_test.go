//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// nodeLab is a lab of hosts with the program on node1, started as a user starts it.
type nodeLab struct {
	*netlab.TestLab
	t    testing.TB
	dir  string // the manifests
	mode string
	// where programs of mode ebpf are attached and pinned, if that is known
	cgroup, bpffs string
}

// labMode is the mode of programs in labs, unless the environment sets another: to see whether a
// test fails where connections do not end at the proxy.
const labMode = "KUBE_PROXY_TEST_MODE"

func newNodeLab(t testing.TB) *nodeLab { t.Helper(); return newNodeLabWith(t, netlab.Options{}) }

func newNodeLabWith(t testing.TB, opts netlab.Options) *nodeLab {
	t.Helper()
	n := &nodeLab{TestLab: netlab.ForTest(t, opts), t: t, dir: t.TempDir(), mode: "userspace"}
	if m := os.Getenv(labMode); m != "" {
		n.mode = m
	}
	n.apply("node", "kind: Node\nmetadata: {name: node1}\nstatus: {addresses: [{type: InternalIP, address: "+
		"172.18.0.2}]}\n")
	return n
}

// apply writes a manifest at once; a watcher sees the old or the new one.
func (n *nodeLab) apply(name, text string) {
	n.t.Helper()
	file := filepath.Join(n.dir, name+".yaml")
	part := filepath.Join(n.t.TempDir(), "part")
	err := os.WriteFile(part, []byte(text), 0o644)
	if err == nil {
		err = os.Rename(part, file)
	}
	do(n.t, err)
}

func (n *nodeLab) remove(name string) {
	n.t.Helper()
	do(n.t, os.Remove(filepath.Join(n.dir, name+".yaml")))
}

// labService is an IPv4 Service with a TCP and a UDP port, both with the number 80, and a NodePort
// if that is not 0.
type labService struct {
	name, ip  string
	nodePort  int
	affinity  bool
	endpoints []netip.AddrPort
}

// manifest has a slice for each port of the endpoints.
func (s labService) manifest() string {
	kind, node, node2, affinity := "ClusterIP", "", "", "None"
	if s.nodePort != 0 {
		kind, node = "NodePort", fmt.Sprintf(", nodePort: %d", s.nodePort)
		node2 = node
	}
	if s.affinity {
		affinity = "ClientIP"
	}
	text := fmt.Sprintf("kind: Service\nmetadata: {name: %s, namespace: lab}\nspec:\n  type: %s\n  clusterIP: %s\n"+
		"  sessionAffinity: %s\n  ports:\n"+
		"  - {name: tcp, port: 80%s}\n  - {name: udp, port: 80, protocol: UDP%s}\n", s.name, kind, s.ip, affinity, node,
		node2)
	byPort := map[uint16][]string{}
	for _, e := range s.endpoints {
		h := netlab.Owner(e.Addr())
		on, _ := netlab.HostByName(h)
		byPort[e.Port()] = append(byPort[e.Port()], fmt.Sprintf("{addresses: [%s], nodeName: %s}", e.Addr(), on.Node))
	}
	for port, list := range byPort {
		text += fmt.Sprintf("---\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[2]d, namespace: lab, labels: "+
			"{kubernetes.io/service-name: %[1]s}}\n"+
			"addressType: IPv4\nports: [{name: tcp, port: %[2]d}, {name: udp, port: %[2]d, protocol: UDP}]\n"+
			"endpoints: [%[3]s]\n", s.name, port, strings.Join(list, ", "))
	}
	return text
}

func (n *nodeLab) service(s labService) { n.t.Helper(); n.apply(s.name, s.manifest()) }

// endpoint is a port of a host.
func endpoint(host string, port uint16) netip.AddrPort {
	h, _ := netlab.HostByName(host)
	return netip.AddrPortFrom(h.V4, port)
}

// query returns the exit code and the output of a command for the program on node1.
func (n *nodeLab) query(args ...string) (code int, out string) {
	n.t.Helper()
	p := n.program(append(args, "--admin-socket="+filepath.Join(n.dir, "admin.sock"))...)
	return p.end(0), p.log()
}

// labProgram is the program on node1.
type labProgram struct {
	*process
	n *nodeLab
}

// start starts the program.
func (n *nodeLab) start(args ...string) *labProgram {
	n.t.Helper()
	args = append([]string{"--proxy-mode=" + n.mode, "--hostname-override=node1", "--manifests=" + n.dir,
		"--cluster-cidr=10.1.0.0/16,fd00:10:1::/48",
		"--nodeport-addresses=172.18.0.0/24,fd00:18::/64", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--profiling", "--admin-socket=" + filepath.Join(n.dir, "admin.sock")}, args...)
	if n.mode == "ebpf" { // the chart's privileged init container
		if init := n.launch(self(n.t), append(args, "--init-only")...); init.end(0) != 0 {
			n.t.Fatalf("--init-only: %s", init.log())
		}
	}
	return n.program(args...)
}

// program starts the program with these arguments alone.
func (n *nodeLab) program(args ...string) *labProgram {
	n.t.Helper()
	if n.mode == "ebpf" { // as the chart has it
		return n.inPod(args...)
	}
	return n.launch(self(n.t), args...)
}

// confined starts the program with these capabilities alone, and without bpf() if they do not allow
// it, as a runtime does.
func (n *nodeLab) confined(capabilities string, args ...string) *labProgram {
	n.t.Helper()
	if !strings.Contains(capabilities, "+bpf") {
		n.t.Setenv(noBPF, "1")
		defer n.t.Setenv(noBPF, "")
	}
	return n.launch("setpriv", append([]string{"--bounding-set=-all" + capabilities, "--inh-caps=-all",
		"--no-new-privs", self(n.t)}, args...)...)
}

func (n *nodeLab) launch(path string, args ...string) *labProgram {
	n.t.Helper()
	cmd := n.Command(netlab.Node1, path, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return &labProgram{launch(n.t, cmd.Cmd, cmd.Start, cmd.Wait), n}
}

// serve starts the program and waits until it serves.
func (n *nodeLab) serve(args ...string) *labProgram {
	n.t.Helper()
	p := n.start(args...)
	p.await(allWritten)
	return p
}

// until calls what until it returns "".
func until(t testing.TB, what func() string) {
	t.Helper()
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		says := what()
		if says == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(says)
		}
	}
}

// ports returns the listening TCP ports in node1, on any address, except those of the program's own
// servers.
func (n *nodeLab) ports() []string {
	n.t.Helper()
	out, err := n.Command(netlab.Node1, "ss", "-Hltn").Output()
	do(n.t, err)
	var all []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if at := fields[3]; !strings.HasSuffix(at, ":10256") && !strings.HasSuffix(at, ":10249") {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	return all
}

// get requests a page from a server of the program.
func (p *labProgram) get(path string) (string, error) {
	c, err := p.n.dial(netlab.Node1, "tcp", netip.MustParseAddrPort("127.0.0.1:10249"), time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.0\r\nHost: 127.0.0.1:10249\r\n\r\n", path); err != nil {
		return "", err
	}
	page, err := io.ReadAll(c)
	return string(page), err
}

// dial connects from a host.
func (n *nodeLab) dial(host, network string, to netip.AddrPort, within time.Duration) (c net.Conn, err error) {
	err = n.Do(host, func() (err error) {
		c, err = net.DialTimeout(network, to.String(), within)
		return err
	})
	return c, err
}

// listen listens on a port of TCP of a host; backlog 0 is the usual one.
func (n *nodeLab) listen(host string, port uint16) (l net.Listener, err error) {
	err = n.Do(host, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf(":%d", port))
		return err
	})
	return l, err
}

// listenUDP has a socket of UDP on a port of a host.
func (n *nodeLab) listenUDP(host string, port uint16) (c *net.UDPConn, err error) {
	err = n.Do(host, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	return c, raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
}
