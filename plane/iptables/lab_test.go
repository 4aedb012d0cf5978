//go:build linux

package iptables

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/plane"
	"kube-proxy/test/planetest"
)

// inNetns runs the rest of the test in a new network namespace.
func inNetns(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	netlab.EnterForTest(t)
}

// needs skips a test if the machine lacks this iptables, or the kernel its tables.
func needs(t testing.TB, b xtables.Backend) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("iptables needs root")
	}
	for _, family := range []string{"iptables-", "ip6tables-"} {
		program := family + string(b)
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
		if err := netlab.Isolated(0, exec.Command(program, "-t", "nat", "-S").Run); err != nil {
			t.Skipf("this kernel has no tables for %s: %v", program, err)
		}
	}
}

func newPlane(t testing.TB, cfg Config) *Plane {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func reset(t testing.TB, p *Plane, want *lb.Table) plane.ResetResult {
	t.Helper()
	res, err := planetest.ResetAll(context.Background(), p, want)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func apply(t testing.TB, p *Plane, changes []lb.Change) {
	t.Helper()
	if _, err := p.Apply(context.Background(), changes); err != nil {
		t.Fatal(err)
	}
}

// replace returns a function that gives an owner these frontends, in the table and in the plane.
func replace(t testing.TB, p *Plane, table *lb.Table) func(lb.Owner, []*lb.Frontend) {
	return func(o lb.Owner, fronts []*lb.Frontend) {
		t.Helper()
		changes, _ := table.Replace(o, fronts)
		apply(t, p, changes)
	}
}

// auditAll audits all rules, even without notification.
func auditAll(p *Plane) (repaired int, err error) {
	p.Doubt()
	for {
		n, err := p.Audit(context.Background(), true)
		repaired += n
		if err != nil || p.round == nil {
			return repaired, err
		}
	}
}

// repairs checks how much an audit of all rules repairs.
func repairs(t testing.TB, p *Plane, want int, when string) {
	t.Helper()
	if got, err := auditAll(p); got != want || err != nil {
		t.Errorf("%s: an audit repaired %d, %v; want %d", when, got, err, want)
	}
}

func dump(t testing.TB, p *Plane) string {
	t.Helper()
	s, err := p.Dump()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a program of iptables with that input; it must succeed.
func run(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eachBackend runs a test with both back ends.
func eachBackend(t *testing.T, f func(t *testing.T, b xtables.Backend)) {
	for _, b := range xtables.Both {
		t.Run(string(b), func(t *testing.T) {
			needs(t, b)
			f(t, b)
		})
	}
}

// eachFamily runs a test with a back end and both families, each in its own namespace.
func eachFamily(t *testing.T, b xtables.Backend, f func(t *testing.T, w planetest.World, cfg Config)) {
	needs(t, b)
	for _, fam := range []lb.Family{lb.IPv4, lb.IPv6} {
		t.Run(fam.String(), func(t *testing.T) {
			inNetns(t)
			f(t, planetest.World{Family: fam}, Config{Family: fam, Backend: b})
		})
	}
}

// eachKind runs a test with both back ends and both families, each in its own namespace.
func eachKind(t *testing.T, f func(t *testing.T, w planetest.World, cfg Config)) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) { eachFamily(t, b, f) })
}

// eachOnce runs a test with both back ends and both families, but not in all combinations, as the
// random walks do.
func eachOnce(t *testing.T, f func(t *testing.T, w planetest.World, cfg Config)) {
	families := map[xtables.Backend]lb.Family{xtables.NFT: lb.IPv6, xtables.Legacy: lb.IPv4}
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		inNetns(t)
		f(t, planetest.World{Family: families[b]}, Config{Family: families[b], Backend: b})
	})
}
