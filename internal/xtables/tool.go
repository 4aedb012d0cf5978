//go:build linux

package xtables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/kernel"
	"kube-proxy/lb"
	"kube-proxy/plane"
)

// Backend is a variant of iptables. Variants do not see each other's rules.
type Backend string

// The back ends. Auto selects the one that the node uses (DP-14).
const (
	Auto   Backend = ""
	NFT    Backend = "nft"
	Legacy Backend = "legacy"
)

// Version is the version that iptables --version prints.
type Version [3]int

func (v Version) atLeast(o Version) bool { return slices.Compare(v[:], o[:]) >= 0 }

// parseVersion reads "iptables v1.8.9 (nf_tables)".
func parseVersion(s string) (v Version, b Backend, err error) {
	fields := strings.Fields(s)
	if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") {
		return v, b, fmt.Errorf("iptables --version printed %q: want a version such as iptables v1.8.9 (nf_tables)", s)
	}
	for i, part := range strings.SplitN(fields[1][1:], ".", 3) {
		v[i], err = strconv.Atoi(part)
		if err != nil {
			return v, b, fmt.Errorf("iptables --version printed %q: %w", s, err)
		}
	}
	b = Legacy
	if strings.Contains(s, "(nf_tables)") {
		b = NFT
	}
	return v, b, nil
}

// Tool is one family's iptables.
type Tool struct {
	Family  lb.Family
	Run     Runner
	Program string // "iptables-nft" or its substitute
	Backend Backend
	Version Version
	Wait    []string // arguments to wait for the lock
	Needs   []Extension
}

// FullyRandom reports whether this iptables supports --random-fully.
func (t *Tool) FullyRandom() bool { return t.Version.atLeast(Version{1, 6, 2}) }

// Real reports whether the programs are the system's, so that the kernel holds their state.
func (t *Tool) Real() bool {
	_, is := t.Run.(System)
	return is
}

// timeout is how long a program may take, also at the start: on a busy node one that only lists a
// chain took more than 10 s, and no other mode should replace one that works. A restore gets 5 s of
// its own to wait for the lock.
const timeout = 2 * time.Minute

// BaseName returns the prefix of the names of a family's programs.
func BaseName(f lb.Family) string {
	if f == lb.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// FindTool finds the programs of a family and a back end.
func FindTool(run Runner, f lb.Family, b Backend) (*Tool, error) {
	base := BaseName(f)
	if b == Auto {
		b = Choose(run, f)
	}
	var errs []error
	for _, program := range []string{base + "-" + string(b), base} {
		if program == base+"-" {
			continue
		}
		t, err := probe(run, f, program)
		if err == nil && b != Auto && t.Backend != b {
			err = fmt.Errorf("%s is the %s back end, not %s", program, t.Backend, b)
		}
		if err == nil {
			return t, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("iptables: no usable %s: %w: %w: install iptables, or use --proxy-mode nftables", base,
		errors.Join(errs...), plane.ErrUnsupported)
}

// probe reads the version of a program.
func probe(run Runner, f lb.Family, program string) (*Tool, error) {
	for _, name := range []string{program, program + "-restore", program + "-save"} {
		if _, err := run.LookPath(name); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out, err := Output(ctx, run, program, "--version")
	if err != nil {
		return nil, err
	}
	t := &Tool{Family: f, Run: run, Program: program}
	t.Version, t.Backend, err = parseVersion(string(out))
	if err != nil {
		return nil, err
	}
	t.Needs = Needed[t.Backend]
	// The nft back end needs no lock. Older programs cannot wait: for them the lock is taken here.
	if t.Backend == Legacy && t.Version.atLeast(Version{1, 6, 2}) {
		t.Wait = []string{"-w", "5"}
		if !t.Version.atLeast(Version{1, 8, 8}) { // later ones ignore it, and complain
			t.Wait = append(t.Wait, "-W", "100000")
		}
	}
	return t, nil
}

// UsableTool finds the programs of a back end that the kernel supports. With Auto, it falls back to
// the other back end if the node's is not usable. A nil Runner is the system's.
func UsableTool(run Runner, f lb.Family, b Backend) (*Tool, error) {
	run = cmp.Or[Runner](run, System{})
	t, err := FindTool(run, f, b)
	if err == nil {
		err = t.Usable(context.Background())
		if err == nil {
			return t, nil
		}
	}
	if b == Auto {
		for _, b := range []Backend{NFT, Legacy} {
			if other, e := FindTool(run, f, b); e == nil && (t == nil || other.Backend != t.Backend) &&
				other.Usable(context.Background()) == nil {
				return other, nil
			}
		}
	}
	return nil, err
}

// Usable checks that the kernel has the tables and the extensions and grants access to them.
// Otherwise the first write would fail, too late to choose another mode. The error names what is
// missing, and wraps plane.ErrUnsupported.
func (t *Tool) Usable(ctx context.Context) error {
	probe, done, err := t.tables(ctx)
	switch {
	case err == nil:
		defer done()
		if err := lacking(t.Backend, t.Needs, probe); err != nil {
			return fmt.Errorf("iptables: %w, or use --proxy-mode nftables: %w", err, plane.ErrUnsupported)
		}
		return nil
	case denied(err):
		return fmt.Errorf("iptables: %s: %w: %w", t.wants(), err, plane.ErrUnsupported)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("iptables: %s did not answer within %s: find what blocks it, or use --proxy-mode nftables: "+
			"%w: %w", t.Program, timeout, err, plane.ErrUnsupported)
	default:
		return fmt.Errorf("iptables: this kernel has no tables for %s, of the %s back end: load ip_tables or "+
			"nf_tables, or use --proxy-mode nftables: %w: %w", t.Program, t.Backend, err, plane.ErrUnsupported)
	}
}

// denied reports whether the kernel or a program refuses for lack of privileges.
func denied(err error) bool {
	said := err.Error()
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) ||
		strings.Contains(said, "Permission denied") || strings.Contains(said, "Operation not permitted") ||
		// the extension set reads the names of sets by a raw socket, also to list a rule
		strings.Contains(said, "Can't open socket to ipset")
}

// wants names the privileges that the programs need.
func (t *Tool) wants() string {
	return t.Program + " may not be used: run as root with CAP_NET_ADMIN and CAP_NET_RAW"
}

// tables checks that the tables can be read, and returns the prober for extensions.
func (t *Tool) tables(ctx context.Context) (probe prober, done func(), err error) {
	real := t.Real()
	if real && t.Backend == Legacy { // no need to wait for the lock, or to copy a table
		info, err := newTableInfo(t.Family)
		if err != nil {
			return nil, nil, err
		}
		return info.prober(), info.close, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A chain with rules that iptables cannot print exists, and can be written.
	if _, err := Output(ctx, t.Run, t.Program, slices.Concat([]string{"-t", "nat"}, t.Wait,
		[]string{"-S", "POSTROUTING"})...); err != nil && !strings.Contains(err.Error(), "is incompatible") {
		return nil, nil, err
	}
	if !real {
		return func(Extension) error { return nil }, func() {}, nil
	}
	nf, err := kernel.OpenNetfilter()
	if err != nil {
		return nil, nil, err
	}
	return probeCompat(nf, t.Family), func() { nf.Close() }, nil
}

// Choose returns the back end that the node uses: the one with the kubelet's hint, else the one
// with more rules (DP-14). Auto means unknown.
func Choose(run Runner, f lb.Family) Backend {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	rules := map[Backend]int{}
	backends, enough := []Backend{NFT, Legacy}, math.MaxInt
	if !LegacyInUse(f) { // listing it would create its tables, and one rule of nft decides
		backends, enough = backends[:1], 1
	}
	for _, b := range backends {
		program := BaseName(f) + "-" + string(b)
		// Not iptables-nft-save: it always reads the rules of all tables, which takes 3 s with
		// 5,000 services. fails if nft has added rules that it cannot show
		out, err := Output(ctx, run, program, "-t", "mangle", "-S")
		if err == nil && slices.ContainsFunc(kubelets,
			func(name string) bool { return bytes.Contains(out, []byte("-N "+name+"\n")) }) {
			return b
		}
		if n, err := countRules(ctx, run, program+"-save", enough); err == nil {
			rules[b] = 1 + n
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

// countRules counts the rules that a program lists, up to enough: with 5,000 services it lists 16
// MB.
func countRules(ctx context.Context, run Runner, program string, enough int) (n int, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	err = run.Pipe(ctx, nil, func(r io.Reader) error {
		for line, err := range ReadSaved(r) {
			if err != nil {
				return err
			}
			if line.Kind == SavedRule {
				n++
			}
			if n == enough {
				end()
				break
			}
		}
		return nil
	}, program)
	if n == enough {
		return n, nil
	}
	return n, err
}

// LegacyInUse reports whether this network namespace has tables of the legacy back end.
func LegacyInUse(f lb.Family) bool {
	names, err := legacyTables(f)
	return err == nil && len(names) > 0
}

// legacyTables are the names of the tables of the legacy back end that exist.
func legacyTables(f lb.Family) ([]string, error) {
	b, err := os.ReadFile("/proc/thread-self/net/" + strings.Replace(BaseName(f), "tables", "_tables_names", 1))
	return strings.Fields(string(b)), err
}

// save runs iptables-save and passes its output to a function.
func (t *Tool) save(ctx context.Context, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	switch err := t.Run.Pipe(ctx, nil, read, t.Program+"-save"); {
	case err == nil:
		return nil
	case denied(err): // in a container with NET_ADMIN alone: the legacy back end, or rules that name ipsets
		return fmt.Errorf("list the rules: %s: %w", t.wants(), err)
	default:
		return fmt.Errorf("list the rules: %w", err)
	}
}

// restore runs iptables-restore on the output of write.
func (t *Tool) restore(ctx context.Context, write func(io.Writer) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if t.Backend == Legacy && t.Wait == nil {
		unlock, err := lockXtables(ctx)
		if err != nil {
			return err
		}
		defer unlock()
	}
	err := t.Run.Pipe(ctx, write, nil, t.Program+"-restore", append([]string{"--noflush"}, t.Wait...)...)
	if run := (*RunError)(nil); t.Backend == Legacy && errors.As(err, &run) &&
		strings.Contains(run.Said, "xtables lock") {
		if who := holders(xtablesLock()); who != "" {
			err = fmt.Errorf("%w (held by %s)", err, who)
		}
	}
	return err
}

// restoreBatch runs iptables-restore on the text of a batch, unless it is empty, and deletes the
// rules that have handles.
func (t *Tool) restoreBatch(ctx context.Context, text []byte, b *Batch) error {
	if len(text) > 0 {
		err := t.restore(ctx, func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return deleteHandled(ctx, t.Family, b.handles)
}

// Find finds the system's programs and the back end that the node uses, which takes seconds with
// thousands of services. It changes nothing. Errors wrap plane.ErrUnsupported without a usable
// iptables.
func Find(f lb.Family) (*Tool, error) { return UsableTool(nil, f, Auto) }

// Modules returns the modules that [Find] may make the kernel load, for the nft back end or,
// without its program, the legacy one.
func Modules(f lb.Family) []string {
	all := []string{"nfnetlink", "nf_tables", "nft_compat"}
	if _, err := exec.LookPath(BaseName(f) + "-nft"); err != nil {
		all = []string{"ip_tables", "iptable_nat"}
		if f == lb.IPv6 {
			all = []string{"ip6_tables", "ip6table_nat"}
		}
	}
	all = append(all, "x_tables")
	for _, e := range Needed[NFT] {
		all = append(all, moduleOf(e))
	}
	return all
}

// moduleOf returns the module that has an extension, of Linux 5.10 or later.
func moduleOf(e Extension) string {
	if e.Name == "DNAT" {
		return "xt_nat"
	}
	return "xt_" + e.Name
}
