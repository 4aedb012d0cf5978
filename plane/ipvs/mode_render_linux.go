package ipvs

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// render returns what a new plane would write to an empty kernel: a part for each program, in
// loading order, since rules name sets. The only node addresses that it knows are those that answer
// NodePorts.
func render(s mode.Settings, want *lb.Table) ([]byte, error) {
	mark, err := plane.MasqueradeMark(&s.MasqueradeBit)
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	asked := optionsOf(s.Blocks)
	cfg := Config{Family: s.Family, Masquerade: mark, Scheduler: schedulerOf(asked.IPVS.Scheduler),
		Sticky: stickyScheduler}
	var own []netip.Addr
	unknown := ""
	for _, p := range want.Node.NodePorts {
		if p.IsSingleIP() {
			own = append(own, p.Addr())
		} else {
			unknown += fmt.Sprintf(", without those of NodePorts at this node's addresses in %s", p)
		}
	}
	slices.SortFunc(own, netip.Addr.Compare)
	p := previewOf(cfg.layout(), own, want)
	program, ip := "iptables", "ip"
	if s.Family == lb.IPv6 {
		program, ip = "ip6tables", "ip -6"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# ipvsadm --restore (%s)%s\n%s", s.Family, unknown, saveServers(p.ops))
	fmt.Fprintf(&b, "# ipset restore (%s)\n", s.Family)
	for _, set := range p.sets {
		if err := ipset.Save(&b, set.Set, set.members); err != nil {
			return nil, fmt.Errorf("ipvs: %w", err)
		}
	}
	fmt.Fprintf(&b, "# %s -batch -\n", ip)
	if s.Family == lb.IPv4 { // the IPv6 parts follow
		fmt.Fprintf(&b, "link add %s type dummy\n", Device)
	}
	for _, a := range p.addresses {
		scope := "scope host"
		if a.Is6() {
			scope = "preferred_lft 0 nodad"
		}
		fmt.Fprintf(&b, "address add %s/%d dev %s %s\n", a, a.BitLen(), Device, scope)
	}
	fmt.Fprintf(&b, "# %s-restore --noflush\n", program)
	saveChains(&b, nodeFacts{family: s.Family, masq: mark, node: want.Node, excluded: asked.excluded(),
		fullyRandom: true})
	return b.Bytes(), nil
}

// saveChains writes chains as iptables-restore reads them.
func saveChains(b *bytes.Buffer, n nodeFacts) {
	all := chainRules(n)
	names := slices.SortedFunc(maps.Keys(all), compareChains)
	for _, table := range []string{"filter", "mangle", "nat"} {
		fmt.Fprintf(b, "*%s\n", table)
		for _, name := range names {
			if name[0] == table {
				fmt.Fprintf(b, ":%s - [0:0]\n", name[1])
			}
		}
		for _, j := range chainJumps() {
			if j.Table == table {
				fmt.Fprintf(b, "-A %s %s\n", j.Chain, j.Rule)
			}
		}
		for _, name := range names {
			if name[0] == table {
				for _, rule := range all[name] {
					fmt.Fprintf(b, "-A %s %s\n", name[1], rule)
				}
			}
		}
		b.WriteString("COMMIT\n")
	}
}
