package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kube-proxy/internal/system"
	"kube-proxy/lb"
)

// The sysctls that are looked at by name.
const (
	ipForward        = "net.ipv4.ip_forward"
	ipv6Forwarding   = "net.ipv6.conf.all.forwarding"
	bridgeCalls      = "net.bridge.bridge-nf-call-iptables"
	bridgeCalls6     = "net.bridge.bridge-nf-call-ip6tables"
	conntrackMax     = "net.netfilter.nf_conntrack_max"
	conntrackCount   = "net.netfilter.nf_conntrack_count"
	conntrackBuckets = "net.netfilter.nf_conntrack_buckets"
	portRange        = "net.ipv4.ip_local_port_range"
	portsReserved    = "net.ipv4.ip_local_reserved_ports"
	routeLocalnet    = "net.ipv4.conf.all.route_localnet"
)

func hostKinds() []Kind {
	return []Kind{
		{ID: "ip-forward", Worst: Error, Live: Error, judge: (*judge).forwarding, needs: sysctls,
			Looks: "net.ipv4.ip_forward and net.ipv6.conf.all.forwarding",
			Why: "Without forwarding, connections from pods and other machines do not reach endpoints of " +
				"Services. Mode ipvs enables it for IPv4; mode userspace does not need it.",
			Remedy: "Set it to 1 at boot with a file in /etc/sysctl.d."},
		{ID: "bridge-netfilter", Worst: Warning, Live: Warning, judge: (*judge).bridges, needs: linksAndSysctls,
			Looks: "net.bridge.bridge-nf-call-iptables where pods are on a bridge",
			Why: "A pod's reply to another pod on the same bridge bypasses the rules that restore the Service's " +
				"address: such connections hang.",
			Remedy: "Load br_netfilter, and set net.bridge.bridge-nf-call-iptables (and ip6tables) to 1 at boot."},
		{ID: "rp-filter", Worst: Warning, Live: Info, judge: (*judge).rpFilter, needs: linksAndSysctls,
			Looks: "strict reverse path filters (rp_filter 1) on uplinks",
			Why: "A strict filter drops packets from another interface than the one for the reply: on a node with " +
				"several uplinks, clients of NodePorts and load balancers may get no answer.",
			Remedy: "Set net.ipv4.conf.all.rp_filter and those of the interfaces to 2 (loose) or 0; the greater " +
				"value of all and the interface applies."},
		{ID: "route-localnet", Worst: Info, judge: (*judge).localnet, needs: sysctls,
			Looks: "net.ipv4.conf.all.route_localnet, if NodePorts answer on 127.0.0.1",
			Why: "Mode iptables sets it so that NodePorts answer on 127.0.0.1, and guards it with a rule " +
				"(CVE-2020-8558).", Remedy: "--iptables-localhost-nodeports=false (iptables.localhostNodePorts) " +
				"avoids it."},
		{ID: "conntrack-size", Worst: Warning, judge: (*judge).conntrackSize, needs: memoryAndSysctls,
			Looks: "the limit of tracked connections, compared with the machine's memory",
			Why: "A tracked connection takes about 320 bytes of kernel memory, and a bucket of the table 8. A " +
				"full table drops new connections.",
			Remedy: "Set --conntrack-max-per-core and --conntrack-min (conntrack.maxPerCore, conntrack.min) to a " +
				"size that fits the machine; 0 per core keeps the kernel's limit."},
		{ID: "conntrack-use", Worst: Error, judge: (*judge).conntrackUse, needs: sysctls,
			Looks: "how full the connection table is, or will be if the proxy lowers the limit",
			Why: "A full table drops new connections of all programs (\"nf_conntrack: table full, dropping " +
				"packet\").",
			Remedy: "Raise the limit (--conntrack-min, --conntrack-max-per-core, if the proxy sets it), find the " +
				"source of the connections (conntrack -L), and lower " +
				"net.netfilter.nf_conntrack_tcp_timeout_established."},
		{ID: "sysctls", Worst: Info, judge: (*judge).changes,
			Looks:  "sysctls that the proxy would change",
			Why:    "They apply to the whole node and stay after the proxy exits.",
			Remedy: "None, if intended: each finding names the flag and field."},
		{ID: "sysctl-files", Worst: Warning, judge: (*judge).elsewhere,
			needs: func(f *Facts) []error { return []error{f.Elsewhere.Err} },
			Looks: "files of sysctl.d whose values differ from what the proxy needs or sets",
			Why: "The file applies at boot and with each sysctl --system, the proxy's value when it starts. The " +
				"last one wins.",
			Remedy: "Change the file, or set the flag to the same value."},
		{ID: "sysctls-read-only", Worst: Warning, judge: (*judge).readOnly,
			Looks: "whether /proc/sys is writable, if something would be changed",
			Why: "In an unprivileged container /proc/sys is read-only: the proxy exits if a current value does " +
				"not suffice.",
			Remedy: "Run a privileged init container with --init-only, or set the sysctls on the node."},
		{ID: "clock", Everywhere: true, Worst: Warning, judge: (*judge).clock,
			Looks: "whether the kernel's clock is synchronized, and how it differs from the API server's",
			Why: "With a wrong clock, certificates and tokens are rejected, and the times of events and metrics " +
				"are misleading.",
			Remedy: "Run an NTP client, such as chrony or systemd-timesyncd."},
		{ID: "descriptors", Worst: Warning, judge: (*judge).descriptors,
			needs: func(f *Facts) []error { return []error{f.Descriptors.Err} },
			Looks: "the limit of file descriptors",
			Why: "In mode userspace each connection takes two to six descriptors; without them new connections " +
				"wait or are rejected. Other modes need a few hundred.",
			Remedy: "Raise the limit of the container runtime, or LimitNOFILE= of the unit."},
	}
}

func (j *judge) forwarding() {
	m, runs := j.running()
	for _, f := range []struct {
		fam  lb.Family
		name string
	}{{lb.IPv4, ipForward}, {lb.IPv6, ipv6Forwarding}} {
		sets := slices.ContainsFunc(j.facts.Changes.Value, func(c system.Change) bool { return c.Name == f.name })
		switch value := j.sysctl(f.name); {
		case !j.serves(f.fam) || !j.uses(f.fam):
		case value == "":
			j.info(f.name, "the kernel does not have it")
		case value != "0":
			j.ok(f.name, "it is %s", value)
		case sets:
			j.info(f.name, "it is 0, and mode %s will set it", m.Name)
		case runs && m.Terminates:
			j.info(f.name, "it is 0; mode %s does not need it", m.Name)
		default:
			j.wrong(f.name, "it is 0")
		}
	}
}

// uses reports whether the configuration has pods of the family; if it does not specify that, any
// served family may have pods.
func (j *judge) uses(f lb.Family) bool {
	if len(j.PodCIDRs) == 0 {
		return f == j.Families[0]
	}
	return slices.ContainsFunc(j.PodCIDRs, func(p netip.Prefix) bool { return lb.FamilyOf(p.Addr()) == f })
}

// pods reports whether an interface belongs to pods: by the configuration, and by the names and
// kinds that network plugins use. In a container, such as kind's or LXC's, and in a virtual network
// the uplink has such a kind or name too.
func (j *judge) pods(l Link) bool {
	if j.leaves(l) {
		return false
	}
	if j.PodInterface != "" && strings.HasPrefix(l.Name, j.PodInterface) {
		return true
	}
	return l.Type == "veth" || slices.ContainsFunc([]string{"cali", "lxc", "cni", "cbr", "flannel", "weave", "cilium_",
		"tunl", "vxlan", "kube-", "docker", "br-", "antrea", "genev"},
		func(p string) bool { return strings.HasPrefix(l.Name, p) })
}

func (j *judge) bridges() {
	var on []string
	for _, b := range j.facts.Links.Value {
		ofPods := b.Name == j.PodInterface || slices.Contains([]string{"cni0", "cbr0", "weave", "kube-bridge"}, b.Name)
		if b.Type == "bridge" && ofPods {
			on = append(on, b.Name)
		}
	}
	if len(on) == 0 {
		j.ok("", "no bridge with pods")
		return
	}
	for _, s := range []struct {
		fam  lb.Family
		name string
	}{{lb.IPv4, bridgeCalls}, {lb.IPv6, bridgeCalls6}} {
		switch value := j.sysctl(s.name); {
		case !j.serves(s.fam) || !j.uses(s.fam):
		case value == "":
			j.warn(s.name, "pods are on bridge %s, and br_netfilter is not loaded", strings.Join(on, ", "))
		case value == "0":
			j.warn(s.name, "pods are on bridge %s, and it is 0", strings.Join(on, ", "))
		default:
			j.ok(s.name, "it is %s", value)
		}
	}
}

func (j *judge) rpFilter() {
	all := j.sysctl("net.ipv4.conf.all.rp_filter")
	var strict, uplinks []string
	for _, l := range j.facts.Links.Value {
		if l.Type == "loopback" || l.Name == "lo" || l.Name == "kube-ipvs0" || !l.Up || j.pods(l) ||
			!slices.ContainsFunc(l.Addrs, isIPv4) {
			continue
		}
		uplinks = append(uplinks, l.Name)
		if max(all, l.RPFilter) == "1" {
			strict = append(strict, l.Name)
		}
	}
	switch {
	case len(strict) == 0:
		j.ok("", "no strict filter on an uplink")
	case len(uplinks) > 1:
		j.warn("", "strict on %s, with several uplinks: %s", strings.Join(strict, ", "), strings.Join(uplinks, ", "))
	default:
		j.info("", "strict on %s, the only uplink", strings.Join(strict, ", "))
	}
}

func (j *judge) localnet() {
	m, ok := j.running()
	switch value := j.sysctl(routeLocalnet); {
	case !ok || !m.LocalhostNodePorts:
	case value == "1":
		j.ok("", "it is 1")
	case slices.ContainsFunc(j.facts.Changes.Value, func(c system.Change) bool { return c.Name == routeLocalnet }):
		j.info("", "it is %s, and mode %s will set it to 1", value, m.Name)
	}
}

// bytes of the kernel for a connection, and for a bucket of the table.
const connectionBytes, bucketBytes = 320, 8

func (j *judge) conntrackSize() {
	memory := j.facts.Memory.Value
	if j.sysctl(conntrackMax) == "" {
		j.info("", "connection tracking is not loaded yet (nf_conntrack)")
		return
	}
	limit, from := j.conntrackLimit()
	most := limit*connectionBytes + max(number(j.sysctl(conntrackBuckets)), limit/4)*bucketBytes
	text := fmt.Sprintf("at most %d connections%s: %d MiB of %d MiB", limit, from, most>>20, memory>>20)
	switch {
	case most > memory/4:
		j.warn("", "%s, more than a quarter", text)
	default:
		j.ok("", "%s", text)
	}
}

// conntrackLimit returns the limit of tracked connections once the proxy runs, and the current
// state if that differs.
func (j *judge) conntrackLimit() (limit uint64, now string) {
	for _, c := range j.facts.Changes.Value {
		if c.Name == conntrackMax {
			return number(c.Want), " (now " + c.Have + ")"
		}
	}
	return number(j.sysctl(conntrackMax)), ""
}

// conntrackUse uses the lower of the limits: a proxy may lower it below the current use.
func (j *judge) conntrackUse() {
	count, limit, from := number(j.sysctl(conntrackCount)), number(j.sysctl(conntrackMax)), ""
	if will, now := j.conntrackLimit(); will < limit {
		limit, from = will, now
	}
	if limit == 0 {
		j.ok("", "connections are not tracked, or without a limit")
		return
	}
	percent := 100 * count / limit
	text := fmt.Sprintf("%d of %d connections%s, %d %%", count, limit, from, percent)
	switch {
	case percent >= 95:
		j.wrong("", "%s", text)
	case percent >= 80:
		j.warn("", "%s", text)
	default:
		j.ok("", "%s", text)
	}
}

// number reads a number that the kernel prints; 0 for anything else.
func number(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func (j *judge) changes() {
	if err := j.facts.Changes.Err; err != nil {
		j.add(Info, "", "some changes are unknown before the proxy starts: %s", oneLine(err))
	}
	for _, c := range j.facts.Changes.Value {
		j.add(Info, c.Name, "%s, would be set to %s by %s", c.Have, c.Want, c.Asks).Why = j.kind.Why
	}
	if j.facts.Changes.Err == nil && len(j.facts.Changes.Value) == 0 {
		j.ok("", "the proxy would change none")
	}
}

func (j *judge) elsewhere() {
	wants := map[string]string{}
	if m, ok := j.running(); ok && !m.Terminates {
		for fam, name := range map[lb.Family]string{lb.IPv4: ipForward, lb.IPv6: ipv6Forwarding} {
			if j.serves(fam) && j.uses(fam) {
				wants[name] = "1"
			}
		}
	}
	for _, c := range j.facts.Changes.Value {
		wants[c.Name] = c.Want
	}
	for _, a := range j.facts.Elsewhere.Value {
		if want, ok := wants[a.Name]; ok && strings.Join(strings.Fields(a.Value), " ") != want {
			j.warn(a.Name, "%s sets it to %s, but %s is needed", a.Where, a.Value, want)
		}
	}
	if len(j.found) == 0 {
		j.ok("", "no file sets another value")
	}
}

func (j *judge) readOnly() {
	if j.facts.OS != "linux" || len(j.facts.Changes.Value) == 0 {
		return
	}
	switch only, ok := of(j, "", j.facts.ReadOnly); {
	case !ok:
	case only:
		j.warn("", "/proc/sys is read-only, but %d settings would be changed", len(j.facts.Changes.Value))
	default:
		j.ok("", "/proc/sys is writable")
	}
}

// skewMost is how far the API server's clock may differ.
const skewMost = 30e9 // nanoseconds

func (j *judge) clock() {
	if j.facts.OS == "linux" {
		switch bad, ok := of(j, "kernel", j.facts.Unsynchronised); {
		case !ok:
		case bad:
			j.warn("kernel", "the clock is not synchronized")
		default:
			j.ok("kernel", "the clock is synchronized")
		}
	}
	if c := j.facts.Cluster; c != nil && c.Version.Err == nil && c.Ahead.Err == nil {
		switch d := c.Ahead.Value; {
		case d > skewMost:
			j.warn("API server", "its clock is %s ahead of this machine's", d)
		case -d > skewMost:
			j.warn("API server", "its clock is %s behind this machine's", -d)
		default:
			j.ok("API server", "its clock differs by less than 30s")
		}
	}
}

func (j *judge) descriptors() {
	limit := j.facts.Descriptors.Value
	m, runs := j.running()
	switch {
	case runs && m.Terminates && limit < 65536:
		j.warn("", "at most %d: mode %s holds some %d connections", limit, m.Name, limit/3)
	case limit < 1024:
		j.warn("", "at most %d", limit)
	default:
		j.ok("", "at most %d", limit)
	}
}
