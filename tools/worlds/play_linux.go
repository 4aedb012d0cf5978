package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
)

// quick is how long a connection may take at first. One that contradicts the answer is repeated
// with patient, because a machine under load is late.
const (
	quick   = 400 * time.Millisecond
	patient = 2500 * time.Millisecond
	// single is before a client repeats its SYN, for which rules draw a backend again.
	single = 900 * time.Millisecond
)

// result is a query with what was said and what happened.
type result struct {
	query   query
	answer  answer
	seen    []outcome
	verdict verdict
	took    time.Duration // of the command
	text    string        // the answer for people, if it is the only query
}

// play is a world that runs.
type play struct {
	*world
	program string
	lab     *netlab.Lab
	dir     string
	proxy   *netlab.Cmd
	log     bytes.Buffer
	pins    string // the BPF file system, in mode ebpf
	ports   portSource
}

// portSource gives each connection a port of its own, apart from those of queries.
type portSource struct {
	mu   sync.Mutex
	next uint16
}

func (p *portSource) take() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return 28000 + p.next%30000
}

// begin builds the world, and starts the proxy.
func begin(w *world, program string) (p *play, err error) {
	p = &play{world: w, program: program}
	p.dir, err = os.MkdirTemp("", "kube-proxy-world-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for manifests: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.end())
		}
	}()
	if err := p.manifests(); err != nil {
		return nil, err
	}
	options := netlab.Options{Name: fmt.Sprintf("w%d", os.Getpid()), Bridge: w.bridge, Cgroup: w.mode == "ebpf"}
	p.lab, err = netlab.New(options)
	if err != nil {
		return nil, err
	}
	// The kernel's own choice must not take the ports of queries and of the proxy's servers.
	if err := p.lab.LocalPorts("node1", 11000, 19999); err != nil {
		return nil, err
	}
	if err := p.unlimited(); err != nil {
		return nil, err
	}
	if err := p.serve(); err != nil {
		return nil, err
	}
	if w.flat {
		err := p.flatten()
		if err != nil {
			return nil, err
		}
	}
	return p, p.start()
}

// unlimited has all hosts send all errors: by default, a client gets one a second.
func (p *play) unlimited() error {
	for _, h := range p.lab.Hosts() {
		err := p.shell(h.Name, "echo 0 >/proc/sys/net/ipv4/icmp_ratelimit; echo 0 >/proc/sys/net/ipv6/icmp/ratelimit")
		if err != nil {
			return fmt.Errorf("allow errors of ICMP without a limit: %w", err)
		}
	}
	return nil
}

// flatten gives pods a route to each other over the bridge. They know the node's MAC address: trace
// does not follow ARP and ND, which a firewall may drop too.
func (p *play) flatten() error {
	for _, pod := range []string{"pod1", "pod2", "pod3"} {
		err := p.shell(pod, `ip route add 10.1.1.0/24 dev eth0; ip -6 route add fd00:10:1:1::/64 dev eth0
mac=$(ip neigh show 169.254.1.1 dev eth0 | sed 's/.*lladdr \([^ ]*\).*/\1/')
for to in 10.1.1.1 fd00:10:1:1::1; do ip neigh replace $to lladdr $mac nud permanent dev eth0; done`)
		if err != nil {
			return fmt.Errorf("give %s a route over the bridge: %w", pod, err)
		}
	}
	return nil
}

// manifests writes the objects.
func (p *play) manifests() error {
	text := nodes
	for _, s := range p.services {
		text += "---\n" + s.manifest()
	}
	if err := os.WriteFile(filepath.Join(p.dir, "world.yaml"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the manifests: %w", err)
	}
	return nil
}

// serve starts the servers of pods and nodes.
func (p *play) serve() error {
	for _, host := range []string{"pod1", "pod2", "pod3", "pod4", "pod5", "node1", "node2"} {
		for _, port := range []uint16{served, stolen} {
			for _, proto := range []netlab.Proto{netlab.TCP, netlab.UDP} {
				if _, err := p.lab.Listen(host, proto, port); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *play) socket() string { return filepath.Join(p.dir, "admin.sock") }

// start starts the proxy, and waits until it has written everything.
func (p *play) start() error {
	args := append([]string{"--proxy-mode=" + p.mode, "--hostname-override=node1", "--manifests=" + p.dir,
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--admin-socket=" + p.socket()}, p.flags...)
	if p.mode == "userspace" { // a machine under load answers late
		args = append(args, "--udp-timeout=5s")
	}
	if p.mode == "ebpf" { // with the capabilities of the chart
		if err := p.bpffs(); err != nil {
			return err
		}
		args = append(args, "--ebpf-cgroup="+p.lab.Cgroup("node1"), "--ebpf-bpffs="+p.pins)
		args = append([]string{"--bounding-set=-all,+net_admin,+bpf,+perfmon,+sys_admin,+sys_resource",
			"--inh-caps=-all",
			"--no-new-privs", p.program}, args...)
		p.proxy = p.lab.Command("node1", "setpriv", args...)
	} else {
		p.proxy = p.lab.Command("node1", p.program, args...)
	}
	p.proxy.Stdout, p.proxy.Stderr = &p.log, &p.log
	if err := p.proxy.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out, err := p.lab.Command("node1", "curl", "-sfm", "2", "http://127.0.0.1:10256/readyz").Output()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("kube-proxy does not serve (%w):\n%s\n%s", err, out, p.log.String())
		}
	}
}

// bpffs mounts a BPF file system of this world, whose programs go with it.
func (p *play) bpffs() error {
	dir := filepath.Join(p.dir, "bpf")
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = unix.Mount("bpf", dir, "bpf", 0, "")
	}
	if err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	p.pins = dir
	return nil
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// end takes the world away.
func (p *play) end() error {
	var errs []error
	if p.proxy != nil && p.proxy.Process != nil {
		errs = append(errs, p.proxy.Process.Signal(syscall.SIGKILL))
		_ = p.proxy.Wait() // it was killed
	}
	if p.pins != "" {
		errs = append(errs, unix.Unmount(p.pins, 0))
	}
	if p.lab != nil {
		errs = append(errs, p.lab.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// shell runs a script in a host.
func (p *play) shell(host, script string) error {
	client, err := p.lab.Namespace("client")
	if err != nil {
		return err
	}
	cmd := p.lab.Command(host, "sh", "-ec", script)
	cmd.Env = append(os.Environ(), fmt.Sprintf("CLIENT=/proc/%d/fd/%d", os.Getpid(), int(client)),
		"XTABLES_LOCKFILE="+filepath.Join(p.dir, "xtables.lock"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", host, err, bytes.TrimSpace(out))
	}
	return nil
}

// mutate applies the mutations. One that this kernel refuses is not applied.
func (p *play) mutate() (refused []string) {
	for _, m := range p.mutations {
		if err := p.shell(m.host, m.do); err != nil {
			refused = append(refused, m.kind+": "+err.Error())
		}
	}
	time.Sleep(50 * time.Millisecond) // the proxy learns of addresses and devices
	return refused
}

// ask asks the command about a connection.
func (p *play) ask(q query) (answer, time.Duration) {
	begin := time.Now()
	args := append([]string{"trace", "-o", "json", "--admin-socket=" + p.socket()}, q.args()...)
	cmd := p.lab.Command("node1", p.program, args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	took := time.Since(begin)
	a := answer{}
	if e := json.Unmarshal(out, &a); e != nil {
		a = answer{}
	}
	a.Exit, a.Text = exitCode(err), string(out)+complaint.String()
	return a, took
}

// text is the answer for people.
func (p *play) text(q query) string {
	out, _ := p.lab.Command("node1", p.program, append([]string{"trace", "-o", "wide", "--admin-socket=" +
		p.socket()},
		q.args()...)...).CombinedOutput()
	return string(out)
}

// connect makes a connection, with data in both directions.
func (p *play) connect(q query, timeout time.Duration) outcome {
	local := netip.AddrPortFrom(q.source(), q.port)
	if q.from == "node1" {
		local = netip.AddrPort{}
	} else if q.port == 0 {
		local = netip.AddrPortFrom(q.source(), p.ports.take())
	}
	proto := netlab.TCP
	if q.udp {
		proto = netlab.UDP
	}
	c, err := p.lab.Open(q.from, proto, q.to, netlab.DialOptions{Timeout: timeout, Local: local})
	note := ""
	if err == nil {
		reply := c.First()
		_, err = c.Exchange()
		_ = c.Close() // the outcome is known
		if err == nil {
			return outcome{"answered", reply.At, reply.Seen.Addr().Unmap(), reply.Server, ""}
		}
		note = "after its first answer, "
	}
	note += strings.TrimPrefix(err.Error(), "netlab: ")
	switch {
	case errors.Is(err, netlab.ErrTimeout):
		return outcome{kind: "silent", note: note}
	case errors.Is(err, netlab.ErrRefused), errors.Is(err, netlab.ErrUnreachable), errors.Is(err, netlab.ErrReset):
		return outcome{kind: "refused", note: note}
	}
	return outcome{kind: "unsent", note: note}
}

// connections makes n at a time.
func (p *play) connections(q query, n int, timeout time.Duration) []outcome {
	if q.port != 0 {
		n = 1
	}
	seen := make([]outcome, n)
	var wait sync.WaitGroup
	for i := range seen {
		wait.Go(func() { seen[i] = p.connect(q, timeout) })
	}
	wait.Wait()
	return seen
}

// run asks about all queries, or one, makes the connections and compares.
func (p *play) run(only int) []result {
	var all []result
	for i, q := range p.queries {
		if only < 0 || i == only {
			all = append(all, result{query: q})
		}
	}
	for i := range all {
		all[i].answer, all[i].took = p.ask(all[i].query)
		if only >= 0 {
			all[i].text = p.text(all[i].query)
		}
	}
	var wait sync.WaitGroup
	for i := range all {
		wait.Go(func() {
			all[i].seen = p.connections(all[i].query, 3, quick)
			all[i].verdict = p.judge(all[i].query, all[i].answer, all[i].seen)
		})
	}
	wait.Wait()
	for i := range all {
		p.again(&all[i])
	}
	return all
}

// again asks and tries once more if answer and outcome differ: quietly, patiently, and often enough
// that each backend was chosen.
func (p *play) again(r *result) {
	if r.verdict.class != "wrong" {
		return
	}
	if r.query.port != 0 {
		r.query.port++ // the first port may have an entry of conntrack
	}
	if r.text != "" {
		r.text = p.text(r.query)
	}
	var took time.Duration
	r.answer, took = p.ask(r.query)
	r.took = max(r.took, took)
	wait := patient
	if r.answer.Rest != nil && r.answer.Rest.partial() {
		wait = single
	}
	r.seen = p.connections(r.query, many, wait)
	r.verdict = p.judge(r.query, r.answer, r.seen)
}
