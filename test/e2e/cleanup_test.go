package e2e

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/internal/netlab"
	"kube-proxy/test/e2e/testbed"
)

// After --cleanup no objects of the proxy are left in any mode, and all others stay: a connection
// that it has translated, the kubelet's hint and a rule of the network plugin (PR-08, DP-15). A
// running proxy would write everything again, so it must have ended.
func TestCleanup(t *testing.T) { inModes(t, allModes, testCleanup) }

func testCleanup(t *testing.T) {
	begin(t)
	addr := web(t, "web", "pod1")
	must(t, bed.Prepare(t.Context()))
	p := startProxy(t)
	await(t, "pod3", addr, "pod1")
	open, err := bed.Lab.Open("pod3", netlab.TCP, addr, netlab.DialOptions{})
	must(t, err)
	defer open.Close()
	// Like that of a network plugin. The kernel stops translating if no NAT rule is left.
	const others = "-s 203.0.113.7/32 -j MASQUERADE"
	foreign := "iptables-" + cmp.Or(bed.Mode.Backend, "nft")
	command(t, foreign, append([]string{"-t", "nat", "-A", "POSTROUTING"}, strings.Fields(others)...)...)
	must(t, p.StopInOrder())

	clean := func() string {
		t.Helper()
		c, err := bed.StartProxyExactly("--cleanup")
		must(t, err)
		if code := c.ExitCode(); code != 0 {
			t.Fatalf("--cleanup ends with status %d:\n%s", code, c.Log())
		}
		return c.Log()
	}
	t.Logf("--cleanup says:\n%s", clean())
	for _, mode := range []string{"nftables", "iptables"} {
		left, err := bed.Leftovers(t.Context(), mode)
		must(t, err)
		if len(left) > 0 {
			t.Errorf("left of mode %s: %q", mode, left)
		}
	}
	if rules := command(t, foreign+"-save"); !strings.Contains(rules, others) {
		t.Errorf("a rule of others has gone:\n%s", rules)
	}
	if bed.Mode.Backend != "" {
		command(t, foreign, "-t", "mangle", "-S", "KUBE-IPTABLES-HINT")
	}
	works(t, open, "through rules that have gone")
	if name, err := bed.Ask("pod3", addr, brief); err == nil {
		t.Errorf("%s still answers at the service address", name)
	}
	if again := clean(); !strings.Contains(again, "No kube-proxy rules found") {
		t.Errorf("a second --cleanup says:\n%s", again)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := bed.Command(t.Context(), netlab.Node1, name, args...)
	must(t, err)
	return out
}

// The node gets another address: NodePorts follow while the process runs (PR-06). In nftables mode
// they answer on the node's primary address only.
func TestNodeAddressChange(t *testing.T) {
	begin(t)
	inMode(t, testbed.NFTables)
	nodePort := nodePortService(t, "port", "pod2")
	p := startProxy(t)
	await(t, netlab.Client, nodePort, "pod2")

	later := netip.MustParseAddr("172.18.0.22")
	command(t, "ip", "address", "add", later.String()+"/24", "dev", netlab.Uplink)
	t.Cleanup(func() { setNodeAddress(t, node1Addr()) })
	moved := netip.AddrPortFrom(later, nodePort.Port())
	if name, err := bed.Ask("pod3", moved, brief); err == nil {
		t.Errorf("%s answers at %s, which the Node does not have yet", name, moved)
	}
	setNodeAddress(t, later)
	await(t, "pod3", moved, "pod2")
	awaitSilence(t, netlab.Client, nodePort)
	select {
	case <-p.Done():
		t.Errorf("the process has ended:\n%s", p.LogTail(10))
	default:
	}
}

// setNodeAddress changes the address in node1's Node object; the context of the test may have
// ended.
func setNodeAddress(t *testing.T, addr netip.Addr) {
	t.Helper()
	must(t, bed.API.SetNodeAddress(netlab.Node1, addr))
}
