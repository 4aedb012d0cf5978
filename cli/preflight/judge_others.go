package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func otherKinds() []Kind {
	return []Kind{
		{ID: "iptables-backends", Worst: Warning, judge: (*judge).backends,
			Looks: "rules in the legacy and in the nft back end of iptables",
			Why: "Packets pass both back ends, which do not see each other's rules: one may drop what the other " +
				"accepts.",
			Remedy: "Let all programs of the node use one back end: the one with the kubelet's chain " +
				"KUBE-IPTABLES-HINT or KUBE-KUBELET-CANARY. Mode nftables uses neither."},
		{ID: "kube-proxy-rules", Worst: Info, judge: (*judge).leftovers,
			Looks: "chains, tables, virtual servers and devices of any kube-proxy",
			Why: "Objects of the running mode are taken over. Objects of another mode stay until this proxy's " +
				"first write, and are then removed.", Remedy: "None. If no proxy is to run here, kube-proxy " +
				"--cleanup removes them."},
		{ID: "kube-proxy-running", Worst: Info, judge: (*judge).writer, needs: func(f *Facts) []error {
			return []error{f.Writer.Err}
		},
			Looks: "whether such a kube-proxy already runs in this network namespace",
			Why:   "A second one waits until the first exits.", Remedy: "None, if it is the one to be replaced."},
		{ID: "ports", Worst: Warning, judge: (*judge).ports, needs: sockets,
			Looks: "whether the addresses of the health and metrics servers are free",
			Why: "Another kube-proxy may use them, and two that do not know each other undo each other's rules. " +
				"Until the port is free, the node's health is not reported.",
			Remedy: "Stop the program that listens there, such as the kube-proxy to be replaced, or choose another " +
				"address: --healthz-bind-address, --metrics-bind-address."},
		{ID: "cilium", Worst: Error, judge: (*judge).cilium,
			Looks: "interfaces and BPF programs of Cilium, and whether it replaces kube-proxy",
			Why: "Cilium's kube-proxy replacement translates connections at sockets, before any rule. Two proxies " +
				"for the same addresses disagree about endpoints and affinity.",
			Remedy: "First set kube-proxy-replacement to false in the ConfigMap cilium-config and restart Cilium's " +
				"agents; see docs/migrating.md. Or do not run this proxy."},
		{ID: "kube-router", Worst: Warning, judge: (*judge).kubeRouter,
			Looks:  "interfaces and chains of kube-router",
			Why:    "kube-router with --run-service-proxy serves Services by IPVS.",
			Remedy: "Run it with --run-service-proxy=false."},
		{ID: "calico-ebpf", Worst: Warning, judge: (*judge).calico,
			Looks:  "interfaces and BPF programs of Calico's eBPF data plane",
			Why:    "Calico's eBPF data plane serves Services itself.",
			Remedy: "Set bpfEnabled to false in its FelixConfiguration, or do not run this proxy."},
		{ID: "firewalld", Worst: Warning, judge: hostFirewall("firewalld", ofFirewalld),
			Looks: "rules of firewalld",
			Why: "firewalld rejects traffic that no zone allows, after translation: NodePorts, and traffic " +
				"forwarded to pods. Its reload removes iptables rules of other programs.",
			Remedy: "Disable firewalld on cluster nodes; or add the pods' interfaces and networks to the zone " +
				"trusted, and open the NodePorts in the uplink's zone."},
		{ID: "ufw", Worst: Warning, judge: hostFirewall("ufw", prefixed("ufw-before-", "ufw6-before-")),
			Looks: "rules of ufw",
			Why: "ufw drops forwarded traffic unless DEFAULT_FORWARD_POLICY is " +
				"ACCEPT, and NodePorts without a rule.",
			Remedy: "Disable ufw on cluster nodes; or set DEFAULT_FORWARD_POLICY=\"ACCEPT\" in /etc/default/ufw, and " +
				"allow the NodePorts and the pods' networks."},
		{ID: "docker-forward", Worst: Warning, Live: Info, judge: (*judge).docker,
			Looks: "Docker's chains, and whether its FORWARD chain drops",
			Why: "Docker sets the policy of FORWARD to DROP when it enables forwarding: forwarded traffic of pods " +
				"is dropped unless a rule accepts it. Modes iptables and ipvs accept what they translate; mode " +
				"nftables does not change other firewalls.",
			Remedy: "Remove Docker if another runtime runs the pods; or set \"ip-forward-no-drop\": true in " +
				"daemon.json (Docker 27.0 and later); or accept the pods' networks in the chain DOCKER-USER."},
		{ID: "other-rules", Worst: Warning, judge: (*judge).otherRules,
			Looks: "rules of other programs that stop a Service's packets or lead them elsewhere, as the kube-proxy " +
				"that runs here found them; without one, they are not looked for",
			Why:    "Clients do not reach the endpoints that the Service has.",
			Remedy: "Change that rule, or ask who owns it."},
		{ID: "drop-policy", Worst: Warning, Live: Info, judge: (*judge).dropPolicy,
			Looks: "base chains of other software at input and forward whose policy is to drop",
			Why: "Every base chain of a hook must accept a packet; such a chain drops the rest, whatever the " +
				"proxy's rules say. At forward this affects traffic to pods; at input, NodePorts of host-network " +
				"pods and the health server.",
			Remedy: "Inspect the chain with nft list ruleset, and let it accept the pods' networks and NodePorts."},
	}
}

// uses reports whether chains hold rules of a back end of iptables, and whether the kubelet's are
// among them.
func uses(chains []Chain) (rules int, kubelet bool) {
	for _, c := range chains {
		if !slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, c.Table) || c.Family == "inet" {
			continue
		}
		if c.Hook == "" || c.Rules > 0 {
			rules += max(c.Rules, 1)
		}
		kubelet = kubelet || c.Name == "KUBE-IPTABLES-HINT" || c.Name == "KUBE-KUBELET-CANARY"
	}
	return rules, kubelet
}

func (j *judge) backends() {
	nft, ok := of(j, "nft", j.facts.Chains)
	legacy, ok2 := of(j, "legacy", j.facts.Legacy)
	if !ok || !ok2 {
		return
	}
	n, kubeletNFT := uses(nft)
	l, kubeletLegacy := uses(legacy)
	kubelet := ""
	switch {
	case kubeletNFT:
		kubelet = "; the kubelet uses nft"
	case kubeletLegacy:
		kubelet = "; the kubelet uses legacy"
	}
	switch {
	case n > 0 && l > 0:
		j.warn("", "both back ends have rules: nft and legacy%s", kubelet)
	case n > 0:
		j.ok("", "only the nft back end has rules%s", kubelet)
	case l > 0:
		j.ok("", "only the legacy back end has rules%s", kubelet)
	default:
		j.ok("", "neither back end has rules")
	}
}

// hasChain returns the places of the chains for which is returns true.
func (j *judge) hasChain(is func(Chain) bool) []string {
	var where []string
	for _, c := range slices.Concat(j.facts.Chains.Value, j.facts.Legacy.Value) {
		if at := c.Family + " " + c.Table; is(c) && !slices.Contains(where, at) {
			where = append(where, at)
		}
	}
	return where
}

// prefixed matches chains whose names begin with one of these.
func prefixed(prefixes ...string) func(Chain) bool {
	return func(c Chain) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(c.Name, p) })
	}
}

// hasLink returns the interfaces for which is returns true.
func (j *judge) hasLink(is func(Link) bool) []string {
	var names []string
	for _, l := range j.facts.Links.Value {
		if is(l) {
			names = append(names, l.Name)
		}
	}
	return names
}

// hasBPF returns the BPF programs whose names begin with one of these.
func (j *judge) hasBPF(prefixes ...string) []string {
	var names []string
	for _, name := range j.facts.BPF.Value {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (j *judge) leftovers() {
	var seen []string
	if at := j.hasChain(func(c Chain) bool {
		return c.Table != "kube-proxy" && (c.Name == "KUBE-SERVICES" || c.Name == "KUBE-NODEPORTS")
	}); len(at) > 0 {
		seen = append(seen, "chains KUBE-… of iptables in "+strings.Join(at, ", "))
	}
	if at := j.hasChain(func(c Chain) bool { return strings.HasPrefix(c.Table, "kube-proxy") }); len(at) > 0 {
		seen = append(seen, "nftables tables "+strings.Join(at, ", "))
	}
	if at := j.hasLink(func(l Link) bool { return l.Name == "kube-ipvs0" }); len(at) > 0 {
		seen = append(seen, "the device kube-ipvs0")
	}
	if n := j.facts.VirtualServers.Value; n > 0 {
		seen = append(seen, fmt.Sprintf("%d IPVS virtual servers, of a kube-proxy or other programs", n))
	}
	if len(seen) > 0 {
		j.add(Info, "", "%s", strings.Join(seen, "; ")).Why = j.kind.Why
		return
	}
	j.nothing("no rules of a kube-proxy", j.facts.Chains.Err, j.facts.Legacy.Err, j.facts.VirtualServers.Err,
		j.facts.Links.Err)
}

func (j *judge) writer() {
	if who := j.facts.Writer.Value; who != "" {
		j.add(Info, "", "running: %s", who).Why = j.kind.Why
		return
	}
	j.ok("", "none")
}

func (j *judge) ports() {
	for _, p := range []struct {
		name string
		at   netip.AddrPort
	}{{"healthz", j.Healthz}, {"metrics", j.Metrics}} {
		if !p.at.IsValid() {
			j.ok(p.name, "disabled")
			continue
		}
		i := slices.IndexFunc(j.facts.Sockets.Value, func(s Socket) bool {
			same := s.At.Addr() == p.at.Addr() || s.At.Addr().IsUnspecified() || p.at.Addr().IsUnspecified()
			return s.Proto == "tcp" && s.At.Port() == p.at.Port() && same
		})
		switch ours := j.facts.Writer.Value; {
		case i < 0:
			j.ok(p.name, "%s is free", p.at)
		case ours != "" && (j.facts.Sockets.Value[i].Owner == "" ||
			strings.HasPrefix(ours, j.facts.Sockets.Value[i].Owner)):
			j.info(p.name, "%s is used by the running kube-proxy", p.at)
		case j.facts.Sockets.Value[i].Owner == "":
			j.warn(p.name, "%s is used by an invisible process", p.at)
		default:
			j.warn(p.name, "%s is used by %s", p.at, j.facts.Sockets.Value[i].Owner)
		}
	}
}

func (j *judge) cilium() {
	devices := j.hasLink(func(l Link) bool {
		return strings.HasPrefix(l.Name, "cilium_") || strings.HasPrefix(l.Name, "lxc_")
	})
	// Its programs at socket hooks belong to the kube-proxy replacement; older versions had no
	// prefix.
	sockets := j.hasBPF("cil_sock", "sock4_connect", "sock6_connect")
	switch {
	case len(sockets) > 0:
		j.wrong("", "Cilium replaces kube-proxy here: BPF programs %s", strings.Join(sockets, ", "))
	case j.facts.BPF.Err != nil && len(devices) > 0:
		j.warn("", "Cilium runs here (%s); cannot determine whether it replaces kube-proxy: %v",
			strings.Join(devices, ", "), j.facts.BPF.Err)
	case len(devices) > 0:
		j.info("", "Cilium runs here (%s) and does not translate at sockets; make sure kube-proxy-replacement is false",
			strings.Join(devices, ", "))
	default:
		j.nothing("no traces of Cilium", j.facts.Links.Err, j.facts.BPF.Err)
	}
}

func (j *judge) kubeRouter() {
	devices := j.hasLink(func(l Link) bool { return l.Name == "kube-dummy-if" })
	switch {
	case len(devices) > 0:
		j.warn("", "its service proxy runs or ran: device %s", devices[0])
	case len(j.hasChain(prefixed("KUBE-ROUTER-"))) > 0:
		j.info("", "its chains exist, without a device of its service proxy")
	default:
		j.nothing("no traces of kube-router", j.facts.Links.Err, j.facts.Chains.Err)
	}
}

func (j *judge) calico() {
	devices := j.hasLink(func(l Link) bool { return l.Name == "bpfin.cali" || l.Name == "bpfout.cali" })
	switch progs := j.hasBPF("calico_connect", "cali_ctlb", "cali_tc_preambl"); {
	case len(devices) > 0 || len(progs) > 0:
		j.warn("", "Calico's eBPF data plane runs: %s", strings.Join(append(devices, progs...), ", "))
	default:
		j.nothing("no traces of Calico's eBPF data plane", j.facts.Links.Err, j.facts.BPF.Err)
	}
}

// hostFirewall returns a check for a host firewall with known chains.
func hostFirewall(name string, is func(Chain) bool) func(*judge) {
	return func(j *judge) {
		if at := j.hasChain(is); len(at) > 0 {
			j.warn("", "%s has rules: %s", name, strings.Join(at, ", "))
			return
		}
		j.nothing("no rules of "+name, j.facts.Chains.Err, j.facts.Legacy.Err)
	}
}

func ofFirewalld(c Chain) bool {
	return strings.HasPrefix(c.Table, "firewalld") || c.Table != "kube-proxy" &&
		slices.Contains([]string{"INPUT_ZONES", "FWD_ZONES", "FORWARD_IN_ZONES"}, c.Name)
}

// forwardOf reports whether a chain is FORWARD of iptables, with the policy to drop.
func dropsForward(c Chain) bool {
	return c.Drop && c.Hook == "forward" && c.Table == "filter" && c.Name == "FORWARD" && c.Family != "inet"
}

func (j *judge) docker() {
	docker := j.hasChain(func(c Chain) bool {
		return c.Name == "DOCKER" || c.Name == "DOCKER-USER" || strings.HasPrefix(c.Table, "docker-bridges")
	})
	drops := j.hasChain(dropsForward)
	switch {
	case len(docker) > 0 && len(drops) > 0:
		j.warn("", "Docker has rules, and FORWARD drops by default: %s", strings.Join(drops, ", "))
	case len(docker) > 0:
		j.info("", "Docker has rules (%s), and FORWARD accepts", strings.Join(docker, ", "))
	default:
		j.nothing("no rules of Docker", j.facts.Chains.Err, j.facts.Legacy.Err)
	}
}

func (j *judge) otherRules() {
	rules := j.facts.InTheWay
	if rules.Err != nil {
		j.info("", "not looked for: %v", rules.Err)
		return
	}
	for _, r := range rules.Value {
		j.add(Warning, "", "%s", r.Seen).Remedy += " See " + r.Next + "."
	}
	if len(rules.Value) == 0 {
		j.ok("", "the kube-proxy that runs here found none")
	}
}

func (j *judge) dropPolicy() {
	docker := len(j.hasChain(func(c Chain) bool { return c.Name == "DOCKER" || c.Name == "DOCKER-USER" })) > 0
	for _, c := range slices.Concat(j.facts.Chains.Value, j.facts.Legacy.Value) {
		switch {
		case !c.Drop || c.Hook != "forward" && c.Hook != "input":
		case j.Running != nil && c.Hook == "input": // most firewalls have one, with rules that accept
		case strings.HasPrefix(c.Table, "kube-proxy"), docker && dropsForward(c): // ours; reported for Docker
		default:
			j.warn(fmt.Sprintf("%s %s %s", c.Family, c.Table, c.Name), "its policy at %s is drop", c.Hook)
		}
	}
	if len(j.found) == 0 {
		j.nothing("no other chain at input or forward has the policy drop", j.facts.Chains.Err, j.facts.Legacy.Err)
	}
}
