package testbed

import (
	"context"
	"fmt"
	"slices"
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

// iptablesRules prints the chains of Kubernetes in the back end of iptables, including the rules of
// built-in chains that jump to them, without counters, chain by chain in the order of their names.
// Rules keep their order.
func (b *Bed) iptablesRules(ctx context.Context) (string, error) {
	var all []string
	for _, program := range b.programs() {
		out, err := b.Command(ctx, netlab.Node1, program+"-save")
		if err != nil {
			return "", err
		}
		all = append(all, kubeChains(program, out)...)
	}
	return strings.Join(all, "\n"), nil
}

// kubeChains reads the output of iptables-save: a line for each chain and each rule that has to do
// with Kubernetes.
func kubeChains(program, save string) []string {
	type chain struct{ name, lines string }
	var chains []chain
	at := map[string]int{}
	table := ""
	for line := range strings.Lines(save) {
		line = strings.TrimSpace(line)
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case !strings.Contains(line, "KUBE-") || strings.Contains(line, hint):
		case strings.HasPrefix(line, ":"):
			name := table + " " + fields[0][1:]
			at[name] = len(chains)
			chains = append(chains, chain{name: name, lines: program + " " + name})
		case strings.HasPrefix(line, "-A "):
			name := table + " " + fields[1]
			if _, ok := at[name]; !ok { // a built-in chain
				at[name] = len(chains)
				chains = append(chains, chain{name: name, lines: program + " " + name})
			}
			chains[at[name]].lines += "\n\t" + strings.Join(fields[2:], " ")
		}
	}
	slices.SortFunc(chains, func(a, b chain) int { return strings.Compare(a.name, b.name) })
	var lines []string
	for _, c := range chains {
		lines = append(lines, c.lines)
	}
	return lines
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

// Leftovers lists the proxy's objects in node1's kernel of other modes than the given one:
// "nftables" for its tables there, "iptables" for its chains in either back end. The hint of the
// kubelet is not the proxy's, and KUBE-FIREWALL is shared with it: the proxy's rule there protects
// 127.0.0.1 for as long as route_localnet is set (DP-10).
func (b *Bed) Leftovers(ctx context.Context, mode string) ([]string, error) {
	var left []string
	switch mode {
	case "nftables":
		there, err := b.present(ctx)
		if err != nil {
			return nil, err
		}
		for _, table := range there {
			left = append(left, "table "+table)
		}
	case "iptables":
		for _, program := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
			out, err := b.Command(ctx, netlab.Node1, program+"-save")
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, "KUBE-") && !strings.Contains(line, hint) &&
					!strings.Contains(line, "KUBE-FIREWALL") {
					left = append(left, program+": "+strings.TrimSpace(line))
				}
			}
		}
	default:
		return nil, fmt.Errorf("leftovers of mode %q: want nftables or iptables", mode)
	}
	return left, nil
}

// FlushRules removes the rules from the proxy's chains, as another program might that assumes to be
// alone.
func (b *Bed) FlushRules(ctx context.Context) error {
	if b.Mode == NFTables {
		for _, table := range tables {
			if _, err := b.nft(ctx, "flush table "+table); err != nil {
				return err
			}
		}
		return nil
	}
	for _, program := range b.programs() {
		// One restore, as other programs do it: each table at once.
		const script = `printf '*mangle\nCOMMIT\n*filter\nCOMMIT\n*nat\nCOMMIT\n' | exec "$0"-restore`
		if _, err := b.Command(ctx, netlab.Node1, "sh", "-c", script, program); err != nil {
			return err
		}
	}
	return nil
}
