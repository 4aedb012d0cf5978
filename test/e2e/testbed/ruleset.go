package testbed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/controlplane"
)

// tables are the proxy's tables in node1.
var tables = []string{"ip kube-proxy", "ip6 kube-proxy"}

// nft runs a command of nft in node1.
func (b *Bed) nft(ctx context.Context, command string) (string, error) {
	return b.Command(ctx, netlab.Node1, "nft", strings.Fields(command)...)
}

// Command runs a command in a host of the lab and returns its standard output.
func (b *Bed) Command(ctx context.Context, host, name string, args ...string) (string, error) {
	netns, err := b.Netns(host)
	if err != nil {
		return "", err
	}
	var out, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &stderr
	process, err := controlplane.StartProcess(name, netns, cmd)
	if err != nil {
		return "", err
	}
	if code := process.ExitCode(); code != 0 {
		return "", fmt.Errorf("%s %s in %s: status %d: %s", name, strings.Join(args, " "), host, code,
			strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

// Ruleset prints the proxy's tables without the parts that change by themselves (counters, timeouts
// of dynamic elements).
func (b *Bed) Ruleset(ctx context.Context) (string, error) {
	if b.Mode.Name == IPTables.Name {
		return b.iptablesRules(ctx)
	}
	var all strings.Builder
	for _, table := range tables {
		out, err := b.nft(ctx, "--stateless list table "+table)
		if err != nil {
			return "", err
		}
		all.WriteString(out)
	}
	return all.String(), nil
}

// CleanNode removes all rules, of any mode, and every tracked connection from node1.
func (b *Bed) CleanNode(ctx context.Context) error {
	if _, err := b.nft(ctx, "flush ruleset"); err != nil {
		return err
	}
	if err := b.cleanIPTables(ctx); err != nil {
		return err
	}
	if b.Mode == EBPF {
		binary, err := b.binary()
		if err != nil {
			return err
		}
		if _, err := b.Command(ctx, netlab.Node1, binary, "--cleanup", "--ebpf-bpffs="+b.bpffs()); err != nil {
			return err
		}
	}
	_, err := b.Command(ctx, netlab.Node1, "conntrack", "-F")
	return err
}

// Monitor records additions to and deletions from the rules of node1. The kernel does not report
// those of the legacy back end of iptables.
type Monitor struct {
	process *controlplane.Process
	read    <-chan struct{} // closed at the end of the output

	mu    sync.Mutex
	lines []string
}

// WatchRules starts a Monitor and returns once it sees every change.
func (b *Bed) WatchRules(ctx context.Context) (m *Monitor, err error) {
	m = &Monitor{}
	m.process, m.read, err = b.FollowRules(ctx, netlab.Node1, func(line string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.lines = append(m.lines, line)
	})
	if err != nil {
		return nil, err
	}
	return m, m.waitListening(ctx, b)
}

// FollowRules runs nft's monitor in a host, and calls take for each line of its output. read is
// closed at the end of the output.
func (b *Bed) FollowRules(ctx context.Context, host string, take func(line string)) (
	process *controlplane.Process, read <-chan struct{}, err error,
) {
	netns, err := b.Netns(host)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, "nft", "monitor")
	out, in := io.Pipe()
	cmd.Stdout = in
	if process, err = controlplane.StartProcess("nft monitor", netns, cmd); err != nil {
		return nil, nil, err
	}
	go func() {
		<-process.Done()
		in.Close()
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(out) // a rule of upstream's has all pods of a Service: too long for a Scanner
		for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
			take(strings.TrimSuffix(line, "\n"))
		}
	}()
	return process, done, nil
}

// waitListening makes changes until the monitor reports one.
func (m *Monitor) waitListening(ctx context.Context, b *Bed) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		for _, verb := range []string{"add", "delete"} {
			if _, err := b.nft(ctx, verb+" table inet "+monitorTable); err != nil {
				return errors.Join(err, m.process.Kill())
			}
		}
		time.Sleep(20 * time.Millisecond)
		m.mu.Lock()
		noticed := len(m.lines) > 0
		m.mu.Unlock()
		if noticed {
			return nil
		}
	}
	return errors.Join(errors.New("nft monitor reports nothing"), m.process.Kill())
}

// monitorTable is made and deleted to see whether the monitor listens.
const monitorTable = "e2e-monitor"

// Stop ends the monitor and returns the changes of the proxy's tables, a line each.
func (m *Monitor) Stop() ([]string, error) {
	if err := m.process.Kill(); err != nil {
		return nil, err
	}
	<-m.read
	var changes []string
	for _, line := range m.lines {
		if strings.Contains(line, " kube-proxy") || strings.Contains(line, " KUBE-") {
			changes = append(changes, line)
		}
	}
	return changes, nil
}
