//go:build linux

package cleanup

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kube-proxy/config/option"
	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/all"
	"kube-proxy/plane/iptables"
	"kube-proxy/plane/ipvs"
)

// inNetns runs the rest of the test in a new network namespace.
func inNetns(t *testing.T) {
	t.Helper()
	needsRoot(t)
	netlab.EnterForTest(t)
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
}

// needs skips a test if the machine lacks a program.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
}

// run runs a program with that input; it must succeed.
func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

var volatile = regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]`)

// rules returns the rules of iptables, without counters and times.
func rules(t *testing.T, program string) string {
	t.Helper()
	return volatile.ReplaceAllString(run(t, "", program+"-save"), "")
}

// state returns everything that the tests compare, as text. It lists legacy tables only if they
// exist.
func state(t *testing.T) string {
	t.Helper()
	s := ""
	for _, ip := range []string{"ip", "ip6"} {
		s += rules(t, ip+"tables-nft")
		b, err := os.ReadFile("/proc/thread-self/net/" + ip + "_tables_names")
		if err == nil && len(b) > 0 {
			s += rules(t, ip+"tables-legacy")
		}
	}
	return s + run(t, "", "nft", "list", "tables") + run(t, "", "ipset", "list", "-n") + run(t, "", "ip", "-o", "link")
}

func clean(t *testing.T, modes mode.List) mode.Report {
	t.Helper()
	r, err := Run(t.Context(), modes, mode.Removal{})
	if err != nil {
		t.Error(err)
	}
	return r
}

// only returns some of the modes.
func only(names ...string) mode.List {
	return slices.DeleteFunc(all.Modes(), func(m mode.Mode) bool { return !slices.Contains(names, m.Name) })
}

// now is a running mode: its families, the back ends of iptables and ipvs, and the settings of the
// cleanup beside it.
type now struct {
	mode     string
	families []lb.Family // nil for both
	backends map[lb.Family]xtables.Backend
	exclude  []netip.Prefix
	drain    time.Duration
	blocks   option.Blocks // in addition to those of exclude
}

// others calls [Others] for the running mode.
func (n now) others(ctx context.Context) (mode.Report, error) {
	modes := all.Modes()
	i := slices.IndexFunc(modes, func(m mode.Mode) bool { return m.Name == n.mode })
	switch n.mode {
	case "iptables":
		modes[i] = iptables.ModeIn(n.backends)
	case "ipvs":
		modes[i] = ipvs.ModeIn(n.backends)
	}
	what := mode.Removal{Families: n.families, Blocks: append(excluding(n.exclude), n.blocks...), Drain: n.drain}
	if what.Families == nil {
		what.Families = bothFamilies
	}
	return Others(ctx, modes, modes[i], what)
}

// clean calls others, which must leave nothing, and returns what was removed.
func (n now) clean(t *testing.T) (removed string) {
	t.Helper()
	r, err := n.others(t.Context())
	if err != nil || len(r.Left) > 0 {
		t.Errorf("beside mode %s: %+v, %v", n.mode, r, err)
	}
	return strings.Join(r.Removed, "\n")
}

var bothFamilies = []lb.Family{lb.IPv4, lb.IPv6}

// legacyWorks reports whether this machine has the legacy back end.
var legacyWorks = sync.OnceValue(func() bool {
	return netlab.Isolated(0, exec.Command("iptables-legacy", "-t", "nat", "-S").Run) == nil
})

// TestMain uses a device of another kind as kube-ipvs0 if the kernel has no dummies.
func TestMain(m *testing.M) {
	if netlab.Isolated(0, exec.Command("ip", "link", "add", "d0", "type", "dummy").Run) != nil {
		ipvs.DeviceType = "bridge"
	}
	os.Exit(m.Run())
}

var backends = []xtables.Backend{xtables.NFT, xtables.Legacy}

// excluding returns a configuration in which virtual servers in these networks are foreign.
func excluding(networks []netip.Prefix) option.Blocks {
	o := &ipvs.Options{}
	for _, p := range networks {
		o.IPVS.ExcludeCIDRs = append(o.IPVS.ExcludeCIDRs, p.String())
	}
	return option.Blocks{o}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func errOf[T any](_ T, err error) error { return err }
