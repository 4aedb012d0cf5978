//go:build linux

package iptables

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"kube-proxy/internal/kernel"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// differs names the intended differences of this mode (DP-26).
var differs = map[string]string{
	"SV-62": "a port that a Service does not have is not rejected: iptables only handles existing ports",
	"SV-63": "an address of the service network that no Service has is not dropped",
	"SV-66": "a ping of a cluster IP is not handled",
}

// tooLarge names the scenarios that take too long in emulation.
var tooLarge = map[string]string{
	"generated-five-thousand-endpoints": "an emulated kernel 6.1 sits for more than ten minutes over one list of " +
		"5,000 rules",
}

// newLiberal creates a plane with a liberal conntrack (--conntrack-tcp-be-liberal). In the lab the
// sink replies to the client past the node, which then sees half of a connection and would
// otherwise drop the rest (DP-09).
func newLiberal(b xtables.Backend) func(lb.Family) (planetest.Plane, error) {
	return func(f lb.Family) (planetest.Plane, error) {
		if _, err := kernel.SetSysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1"); err != nil {
			return nil, err
		}
		return New(Config{Family: f, Backend: b, Runner: xtables.System{Lock: ownLock()}})
	}
}

// ownLock returns a lock file for one plane. Otherwise all planes of the legacy back end share one,
// in any network namespace, and on a slow machine many parallel tests wait too long for it.
func ownLock() string { return fmt.Sprintf("/run/xtables.lock.%d.%d", os.Getpid(), locks.Add(1)) }

var locks atomic.Uint64

// TestMain deletes the lock files.
func TestMain(m *testing.M) {
	code := m.Run()
	for i := range locks.Load() {
		os.Remove(fmt.Sprintf("/run/xtables.lock.%d.%d", os.Getpid(), i+1))
	}
	os.Exit(code)
}

// traced returns the mode's description for trace.
func traced(f lb.Family) trace.Mode { return Mode().Trace(mode.Settings{Family: f}) }

// TestConformance sends the packets of every scenario through the kernel, with both variants of
// iptables.
func TestConformance(t *testing.T) {
	kerneltest.Every(t)
	modes := map[xtables.Backend]string{xtables.NFT: "iptables", xtables.Legacy: "iptables-legacy"}
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		planetest.Run(t, planetest.Config{Mode: modes[b], New: newLiberal(b), Differs: differs, Untouched: true,
			Trace: traced, Core: core, TooLarge: tooLarge})
	})
}

// TestRandomTransitions walks at random between the states of all scenarios.
func TestRandomTransitions(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		t.Parallel()
		planetest.Transitions(t, planetest.Config{New: newWith(b)})
	})
}

// TestHistory sends packets to all Services after each step of a node's life, and while something
// is damaged.
func TestHistory(t *testing.T) {
	eachBackend(t, func(t *testing.T, b xtables.Backend) {
		t.Parallel()
		planetest.History(t, planetest.Config{New: newLiberal(b), Trace: traced, Drift: backend(b).damage,
			TakeOver: backend(b).usurp,
			Break:    planetest.BreakChains(backend(b).program), AffinityByEndpoint: true})
	})
}

// backend is a back end, with the changes that other programs make through it.
type backend xtables.Backend

// damage does what a program with our rights may do: it empties one of our chains, or all, or
// removes a jump.
func (b backend) damage(f lb.Family, rnd *rand.Rand) error {
	program := b.program(f)
	rules, err := exec.Command(program, "-t", "nat", "-S").Output()
	if err != nil {
		return fmt.Errorf("%s -t nat -S: %w", program, err)
	}
	ways := [][]string{{"-F"}, {"-D", "PREROUTING", "1"}}
	for line := range strings.Lines(string(rules)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "-N KUBE-"); ok {
			ways = append(ways, []string{"-F", "KUBE-" + name})
		}
	}
	args := append([]string{"-t", "nat"}, ways[rnd.IntN(len(ways))]...)
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}

// usurp writes what an upstream kube-proxy would leave: other content in the chains that both know,
// and some new chains.
func (b backend) usurp(f lb.Family) error {
	restore := exec.Command(b.program(f)+"-restore", "--noflush")
	restore.Stdin = strings.NewReader(`*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -m comment --comment "town/s0:p" -m tcp -p tcp --dport 30080 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment "town/s0:p" -j KUBE-SEP-AAAAAAAAAAAAAAAA
COMMIT
`)
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", restore, err, out)
	}
	return nil
}

// program returns the name of the family's iptables of the back end.
func (b backend) program(f lb.Family) string {
	if f == lb.IPv6 {
		return "ip6tables-" + string(b)
	}
	return "iptables-" + string(b)
}

func newWith(b xtables.Backend) func(lb.Family) (planetest.Plane, error) {
	return func(f lb.Family) (planetest.Plane, error) {
		return New(Config{Family: f, Backend: b, Runner: xtables.System{Lock: ownLock()}})
	}
}
