package userspace

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/internal/relay"
	"kube-proxy/plane/userspace/redirect"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// kind is a redirector with which the plane is tested.
type kind struct {
	name string
	// untouched: packets to addresses and ports without a Service pass unchanged.
	untouched bool
	make      func(redirect.Config) (redirect.Redirector, error)
	// damage changes the redirector's state in the kernel, as another privileged program could;
	// wipe removes everything.
	damage func(lb.Family, *rand.Rand) error
	wipe   func(lb.Family) error
	// reported: the redirector receives notifications of foreign changes.
	reported bool
}

var kinds = []kind{
	{"nftables", false, func(c redirect.Config) (redirect.Redirector, error) { return redirect.NewNFTables(c) },
		damageNFTables, wipeNFTables, true},
	{"iptables", true, func(c redirect.Config) (redirect.Redirector, error) { return redirect.NewIPTables(c) },
		damageIPTables, wipeIPTables, false},
}

// mark is the packet mark of the default masquerade bit.
const mark = 1 << 14

// plane makes a plane with this redirector.
func (k kind) plane(f lb.Family) (planetest.Plane, error) {
	c, err := k.make(redirect.Config{Family: f, Mark: mark})
	if err != nil {
		return nil, err
	}
	// On an emulated kernel an answer may take longer than the default idle time of sessions
	// (CF-45).
	p, err := New(Config{Family: f, Redirector: c, Relay: relay.Config{Mark: mark, UDPIdle: 10 * time.Second},
		ExternalIPsBounded: func() bool { return true }, CountServices: f == lb.IPv6})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// traced returns the mode with this redirector for trace.
func (k kind) traced(f lb.Family) trace.Mode {
	how := Mode().Trace(mode.Settings{Family: f})
	how.PassesUnknown = k.untouched
	return how
}

// config returns the suite's configuration for a kind. The default kind is the mode's column of the
// conformance page.
func (k kind) config() planetest.Config {
	return planetest.Config{Mode: "userspace", Variant: k.name != kinds[0].name, New: k.plane, Proxied: true,
		Untouched: k.untouched, Drift: k.damage, Trace: k.traced, Core: core}
}

// TestConformance sends the packets of every scenario, redirected by nftables.
func TestConformance(t *testing.T) {
	kerneltest.Every(t)
	planetest.Run(t, kinds[0].config())
}

// TestConformanceIPTables redirects by iptables instead.
func TestConformanceIPTables(t *testing.T) {
	kerneltest.Later(t)
	planetest.Run(t, kinds[1].config())
}

// TestRandomTransitions makes random transitions between the states of all scenarios.
func TestRandomTransitions(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { planetest.Transitions(t, k.config()) })
	}
}

// TestHistory sends packets to all Services after each step of a node's life (SV-25).
func TestHistory(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) { planetest.History(t, k.config()) })
	}
}

// TestVerbs checks the kernel's state after each verb.
func TestVerbs(t *testing.T) {
	kerneltest.Later(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			planetest.Verbs(t, func(t testing.TB) planetest.Kernel {
				netlab.EnterForTest(t)
				var last planetest.Plane // of the previous process, which has ended when the next begins
				next := func(f lb.Family) (p planetest.Plane, err error) {
					if last != nil {
						err = last.(*Plane).Close()
					}
					if err == nil {
						p, err = k.plane(f)
						last = p
					}
					return p, err
				}
				return planetest.Kernel{
					New: next,
					Slow: func(f lb.Family) (planetest.Plane, error) {
						p, err := next(f)
						if err == nil {
							p.(*Plane).maxBatchWeight = 10
						}
						return p, err
					},
					Damage: k.damage, Wipe: k.wipe, Reported: k.reported, Balances: true,
				}
			})
		})
	}
}

func run(program string, args ...string) (string, error) {
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func nftFamily(f lb.Family) string {
	if f == lb.IPv6 {
		return "ip6"
	}
	return "ip"
}

// damageNFTables empties a chain, a map or a set, adds a rule to a chain, or deletes the table.
func damageNFTables(f lb.Family, rnd *rand.Rand) error {
	text, err := run("nft", "-t", "list", "table", nftFamily(f), redirect.TableName)
	if err != nil {
		return err
	}
	table := nftFamily(f) + " " + redirect.TableName
	ways := []string{"delete table " + table}
	for line := range strings.Lines(text) {
		if w := strings.Fields(line); len(w) == 3 && w[2] == "{" && w[0] != "table" {
			ways = append(ways, fmt.Sprintf("flush %s %s %s", w[0], table, w[1]))
			if w[0] == "chain" {
				ways = append(ways, fmt.Sprintf("insert rule %s %s accept", table, w[1]))
			}
		}
	}
	_, err = run("nft", ways[rnd.IntN(len(ways))])
	return err
}

func wipeNFTables(f lb.Family) error {
	_, err := run("nft", "flush", "ruleset", nftFamily(f))
	return err
}

func iptables(f lb.Family) string {
	if f == lb.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// damageIPTables empties one chain or all, or deletes a jump.
func damageIPTables(f lb.Family, rnd *rand.Rand) error {
	rules, err := run(iptables(f), "-t", "nat", "-S")
	if err != nil {
		return err
	}
	ways := []string{"-F", "-D PREROUTING 1"}
	for line := range strings.Lines(rules) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "-N KUBE-"); ok {
			ways = append(ways, "-F KUBE-"+name)
		}
	}
	_, err = run(iptables(f), append([]string{"-t", "nat"}, strings.Fields(ways[rnd.IntN(len(ways))])...)...)
	return err
}

func wipeIPTables(f lb.Family) (err error) {
	for _, table := range []string{"nat", "filter", "mangle"} {
		for _, do := range []string{"-F", "-X"} {
			_, e := run(iptables(f), "-t", table, do)
			err = errors.Join(err, e)
		}
	}
	return err
}
