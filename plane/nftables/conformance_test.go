//go:build linux

package nftables

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// traced returns the mode's description for trace.
func traced(f lb.Family) trace.Mode { return Mode().Trace(mode.Settings{Family: f}) }

// TestConformance sends the packets of every scenario through the kernel.
func TestConformance(t *testing.T) {
	planetest.Run(t, planetest.Config{Mode: "nftables", New: newConformant, Trace: traced, Core: core})
}

// TestRandomTransitions walks at random between the states of all scenarios.
func TestRandomTransitions(t *testing.T) {
	planetest.Transitions(t, planetest.Config{New: newConformant})
}

// TestHistory sends packets to all Services after each step of a node's life (SV-25), and while
// something is damaged.
func TestHistory(t *testing.T) {
	planetest.History(t, planetest.Config{New: newConformant, Trace: traced, Drift: damage, TakeOver: usurp,
		Break: planetest.BreakTable(TableName)})
}

func nftFamily(f lb.Family) string {
	if f == lb.IPv6 {
		return "ip6"
	}
	return "ip"
}

// damage does what another program with our rights may do: it empties a chain, a map or a set, or
// deletes the table.
func damage(f lb.Family, rnd *rand.Rand) error {
	table := nftFamily(f) + " " + TableName
	text, err := exec.Command("nft", "-t", "list", "table", nftFamily(f), TableName).Output()
	if err != nil {
		return fmt.Errorf("nft list table %s: %w", table, err)
	}
	ways := []string{"delete table " + table}
	for line := range strings.Lines(string(text)) {
		if w := strings.Fields(line); len(w) == 3 && w[2] == "{" && w[0] != "table" {
			ways = append(ways, fmt.Sprintf("flush %s %s %s", w[0], table, w[1]))
		}
	}
	return runScript(ways[rnd.IntN(len(ways))])
}

// usurp creates what an upstream kube-proxy leaves: a table with the same name and another layout.
func usurp(f lb.Family) error {
	return runScript(strings.ReplaceAll(`add table T
		delete table T
		add table T
		add chain T services
		add map T service-ips { type inet_service : verdict; }
		add chain T nat-prerouting { type nat hook prerouting priority dstnat; }
		add rule T nat-prerouting jump services
		add element T service-ips { 80 : goto services }`, " T", " "+nftFamily(f)+" "+TableName))
}

func runScript(script string) error {
	if out, err := exec.Command("nft", script).CombinedOutput(); err != nil {
		return fmt.Errorf("nft %s: %w: %s", script, err, out)
	}
	return nil
}

// newConformant returns a plane that counts connections in one family, so that packets meet rules
// with and without counters.
func newConformant(f lb.Family) (planetest.Plane, error) {
	return New(Config{Family: f, CountServices: f == lb.IPv6})
}
