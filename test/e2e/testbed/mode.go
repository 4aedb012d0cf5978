package testbed

import (
	"context"
	"strings"

	"kube-proxy/internal/netlab"
)

// Mode is a data plane that the proxy is started with.
type Mode struct {
	Name    string // of --proxy-mode
	Backend string // of iptables: nft or legacy; "" in other modes
}

// The modes that can be tested.
var (
	NFTables       = Mode{Name: "nftables"}
	IPTables       = Mode{Name: "iptables", Backend: "nft"}
	IPTablesLegacy = Mode{Name: "iptables", Backend: "legacy"}
	EBPF           = Mode{Name: "ebpf"}
	Blank          = Mode{Backend: "nft"} // no mode is configured, so that it is IPTables
)

func (m Mode) String() string {
	if m.Backend == "legacy" {
		return m.Name + "-legacy"
	}
	return m.Name
}

// hint is the chain by which a kubelet shows which back end of iptables a node uses (DP-14).
const hint = "KUBE-IPTABLES-HINT"

// Prepare has the node look as a kubelet leaves it that uses the mode's back end of iptables, as
// StartProxy does.
func (b *Bed) Prepare(ctx context.Context) error {
	if b.Mode.Backend == "" {
		return nil
	}
	for _, program := range b.programs() {
		if _, err := b.Command(ctx, netlab.Node1, program, "-t", "mangle", "-S", hint); err == nil {
			continue
		}
		if _, err := b.Command(ctx, netlab.Node1, program, "-t", "mangle", "-N", hint); err != nil {
			return err
		}
	}
	return nil
}

// programs are iptables of both families with the mode's back end.
func (b *Bed) programs() []string {
	return []string{"iptables-" + b.Mode.Backend, "ip6tables-" + b.Mode.Backend}
}

// iptablesRules prints the chains of Kubernetes in the back end of iptables, and the rules of
// built-in chains that jump to them, without counters.
func (b *Bed) iptablesRules(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, program := range b.programs() {
		out, err := b.Command(ctx, netlab.Node1, program+"-save")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, "KUBE-") && !strings.Contains(line, hint) {
				all.WriteString(line)
			}
		}
	}
	return all.String(), nil
}

// cleanIPTables empties the tables of the legacy back end that the kernel has in node1. Those of
// the nft back end go with the rest of nftables.
func (b *Bed) cleanIPTables(ctx context.Context) error {
	for _, f := range []struct{ names, program string }{
		{"/proc/self/net/ip_tables_names", "iptables-legacy"},
		{"/proc/self/net/ip6_tables_names", "ip6tables-legacy"},
	} {
		// cat is a process in the namespace; the file may be missing where the module is not
		// loaded.
		names, err := b.Command(ctx, netlab.Node1, "sh", "-c", "if [ -e "+f.names+" ]; then cat "+f.names+"; fi")
		if err != nil {
			return err
		}
		for _, table := range strings.Fields(names) {
			for _, verb := range []string{"-F", "-X"} {
				if _, err := b.Command(ctx, netlab.Node1, f.program, "-w", "-t", table, verb); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// FlushRules removes the rules from the chains of iptables, as another program might that assumes
// to be alone.
func (b *Bed) FlushRules(ctx context.Context) error {
	for _, program := range b.programs() {
		// One restore, as other programs do it: each table at once.
		const script = `printf '*mangle\nCOMMIT\n*filter\nCOMMIT\n*nat\nCOMMIT\n' | exec "$0"-restore`
		if _, err := b.Command(ctx, netlab.Node1, "sh", "-c", script, program); err != nil {
			return err
		}
	}
	return nil
}
