package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
)

// Build builds a program of this repository, such as kube-proxy, into dir and returns its path.
func Build(ctx context.Context, dir, program string) (path string, err error) {
	root, err := controlplane.Root()
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, program)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/"+program)
	cmd.Dir = filepath.Join(root, "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	return path, nil
}

// Proxy is a kube-proxy process in node1.
type Proxy struct {
	*controlplane.Process
	Binary string // its program
	log    string
}

// minSyncPeriod is the wait of a change for others in iptables mode, in tests. The default, a
// second like upstream's, would be most of a test's time.
const minSyncPeriod = 10 * time.Millisecond

// StartProxy starts kube-proxy in node1 as the proxy's user, in the mode of the bed, unless the
// arguments say otherwise.
func (b *Bed) StartProxy(args ...string) (*Proxy, error) {
	if err := b.Prepare(context.Background()); err != nil {
		return nil, err
	}
	var more []string
	switch b.Mode {
	case NFTables: // its default is 0, and otherwise it would use that of iptables (CF-62)
	case EBPF:
		more = []string{"--ebpf-cgroup=" + b.Lab.Cgroup(netlab.Node1), "--ebpf-bpffs=" + b.bpffs()}
	default:
		more = []string{"--iptables-min-sync-period", minSyncPeriod.String()}
	}
	return b.StartProxyOn(netlab.Node1, append(more, args...)...)
}

// Kubeconfig is the path of the kubeconfig of the proxy's user.
func (b *Bed) Kubeconfig() string { return b.kubeconfig }

// StartProxyExactly starts kube-proxy in node1 with no other arguments than these.
func (b *Bed) StartProxyExactly(args ...string) (*Proxy, error) { return b.StartProxyBy(nil, args...) }

// showConntrackMax starts a program that sees the content of a file in a sysctl that the machine
// has once and a namespace cannot set: the machine's value depends on its memory, and the requested
// one on the CPUs.
const showConntrackMax = `sysctl=/proc/sys/net/netfilter/nf_conntrack_max
[ -e $sysctl ] || conntrack -C >/dev/null # loads nf_conntrack
mount -o bind,ro "$0" $sysctl && exec "$@"`

// StartProxyBy is StartProxyExactly by another program, such as one that drops rights: its
// arguments end with those of kube-proxy, the path first.
func (b *Bed) StartProxyBy(by []string, args ...string) (*Proxy, error) {
	return b.startOn(netlab.Node1, by, args)
}

// StartProxyOn is StartProxy in any host of the lab, which is then a node of that name.
func (b *Bed) StartProxyOn(host string, args ...string) (*Proxy, error) {
	return b.startOn(host, nil, slices.Concat([]string{
		"--kubeconfig", b.kubeconfig, "--proxy-mode=" + b.Mode.Name, "--hostname-override", host,
		"--cluster-cidr", netlab.Cluster4.String() + "," + netlab.Cluster6.String(), "-v", "2",
	}, b.options.Args, args))
}

func (b *Bed) startOn(host string, by, args []string) (*Proxy, error) {
	binary, err := b.binary()
	if err != nil {
		return nil, err
	}
	connections := filepath.Join(b.Dir, "nf_conntrack_max")
	if err := os.WriteFile(connections, []byte("67108864\n"), 0o644); err != nil {
		return nil, err
	}
	line := slices.Concat([]string{"unshare", "--mount", "sh", "-ec", showConntrackMax, connections}, by,
		[]string{binary}, args)
	cmd := exec.Command(line[0], line[1:]...)
	log := filepath.Join(b.Dir, fmt.Sprintf("kube-proxy-%d.log", len(b.proxies)))
	process, err := b.Launch(host, "kube-proxy", log, cmd)
	if err != nil {
		return nil, err
	}
	p := &Proxy{Process: process, Binary: binary, log: log}
	b.proxies = append(b.proxies, p)
	return p, nil
}

// Log returns the proxy's output and errors so far.
func (p *Proxy) Log() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// LogTail returns the last n lines of Log, without those that list the flags.
func (p *Proxy) LogTail(n int) string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, `] "FLAG: `) })
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// StopInOrder sends SIGTERM; the proxy must end with status 0 within 5 s.
func (p *Proxy) StopInOrder() error {
	if err := p.Stop(5 * time.Second); err != nil {
		return err
	}
	if code := p.ExitCode(); code != 0 {
		return fmt.Errorf("kube-proxy ended with status %d after SIGTERM:\n%s", code, p.LogTail(10))
	}
	return nil
}
