package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Runner runs programs. The zero Config uses the system's.
type Runner interface {
	// LookPath returns where the program of that name is.
	LookPath(name string) (string, error)
	// Run runs the program with that standard input and returns its standard output. An error tells what the
	// program wrote to standard error.
	Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error)
}

type system struct{}

func (system) LookPath(name string) (string, error) { return exec.LookPath(name) }

func (system) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	// A program that is to end gets the chance to give back the lock.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		if len(said) > 1000 {
			said = said[:1000] + "…"
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		return nil, &runError{name: name, said: said, err: err}
	}
	return out.Bytes(), nil
}

// runError is a program that failed.
type runError struct {
	name, said string
	err        error
}

func (e *runError) Error() string {
	if e.said == "" {
		return e.name + ": " + e.err.Error()
	}
	return fmt.Sprintf("%s: %v: %s", e.name, e.err, e.said)
}

func (e *runError) Unwrap() error { return e.err }

// Backend is a variant of iptables: they do not see each other's rules.
type Backend string

// The back ends. Auto takes the one that the node uses (DP-14).
const (
	Auto   Backend = ""
	NFT    Backend = "nft"
	Legacy Backend = "legacy"
)

// version is what iptables --version tells.
type version [3]int

func (v version) atLeast(o version) bool {
	for i := range v {
		if v[i] != o[i] {
			return v[i] > o[i]
		}
	}
	return true
}

// parseVersion reads "iptables v1.8.9 (nf_tables)".
func parseVersion(s string) (v version, b Backend, err error) {
	fields := strings.Fields(s)
	if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") {
		return v, b, fmt.Errorf("iptables --version printed %q: want a version such as iptables v1.8.9 (nf_tables)", s)
	}
	for i, part := range strings.SplitN(fields[1][1:], ".", 3) {
		if v[i], err = strconv.Atoi(part); err != nil {
			return v, b, fmt.Errorf("iptables --version printed %q: %w", s, err)
		}
	}
	b = Legacy
	if strings.Contains(s, "(nf_tables)") {
		b = NFT
	}
	return v, b, nil
}

// tool is one family's iptables.
type tool struct {
	run     Runner
	program string // "iptables-nft" or what stands for it
	backend Backend
	version version
	wait    []string // arguments that make it wait for the lock
}

// timeout is how long a program may take; a restore that waits for the lock is given 5 s by itself.
const timeout = 2 * time.Minute

// findTool finds the programs of a family and a back end.
func findTool(run Runner, f lb.Family, b Backend) (*tool, error) {
	base := "iptables"
	if f == lb.IPv6 {
		base = "ip6tables"
	}
	if b == Auto {
		b = choose(run, base)
	}
	var errs []error
	for _, program := range []string{base + "-" + string(b), base} {
		if program == base+"-" {
			continue
		}
		t, err := probe(run, program)
		if err == nil && b != Auto && t.backend != b {
			err = fmt.Errorf("%s is the %s back end, not %s", program, t.backend, b)
		}
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("iptables: no usable %s: %w: %w: install iptables, or use --proxy-mode nftables", base, errors.Join(errs...), plane.ErrUnsupported)
}

// probe asks a program for its version.
func probe(run Runner, program string) (*tool, error) {
	for _, name := range []string{program, program + "-restore", program + "-save"} {
		if _, err := run.LookPath(name); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := run.Run(ctx, nil, program, "--version")
	if err != nil {
		return nil, err
	}
	t := &tool{run: run, program: program}
	if t.version, t.backend, err = parseVersion(string(out)); err != nil {
		return nil, err
	}
	// The nft back end needs no lock. Older programs cannot wait: for them the lock is taken here.
	if t.backend == Legacy && t.version.atLeast(version{1, 6, 2}) {
		t.wait = []string{"-w", "5"}
		if !t.version.atLeast(version{1, 8, 8}) { // later ones ignore it, and complain
			t.wait = append(t.wait, "-W", "100000")
		}
	}
	return t, nil
}

// choose returns the back end that the node uses: that which has the kubelet's hint, else that with more rules
// (DP-14). Auto means that it cannot be told.
func choose(run Runner, base string) Backend {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rules := map[Backend]int{}
	for _, b := range []Backend{NFT, Legacy} {
		program := base + "-" + string(b)
		if b == Legacy && !legacyInUse(base) { // to list it would make its tables
			continue
		}
		out, err := run.Run(ctx, nil, program+"-save", "-t", "mangle")
		if err != nil {
			continue
		}
		if bytes.Contains(out, []byte("\n:KUBE-IPTABLES-HINT ")) || bytes.Contains(out, []byte("\n:KUBE-KUBELET-CANARY ")) {
			return b
		}
		if out, err = run.Run(ctx, nil, program+"-save"); err == nil {
			rules[b] = 1 + bytes.Count(out, []byte("\n-A "))
		}
	}
	switch {
	case rules[Legacy] > max(rules[NFT], 1):
		return Legacy
	case rules[NFT] > 1:
		return NFT
	}
	return Auto
}

// legacyInUse reports whether the kernel has tables of the legacy back end in this network namespace.
func legacyInUse(base string) bool {
	name := "ip_tables_names"
	if base == "ip6tables" {
		name = "ip6_tables_names"
	}
	b, err := os.ReadFile("/proc/thread-self/net/" + name)
	return err == nil && len(bytes.TrimSpace(b)) > 0
}

// restore hands text to iptables-restore.
func (t *tool) restore(ctx context.Context, text []byte, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if t.backend == Legacy && t.wait == nil {
		unlock, err := lockXtables(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	_, err := t.run.Run(ctx, text, t.program+"-restore", append(append([]string{"--noflush"}, t.wait...), args...)...)
	return err
}

// lockXtables takes the lock that programs before 1.6.2 do not wait for (DP-14).
func lockXtables(ctx context.Context) (unlock func(), err error) {
	const path = "/run/xtables.lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take the lock of iptables: %w", err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("take the lock %s: somebody holds it for 5 s: %w", path, err)
		}
	}
}
