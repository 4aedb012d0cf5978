// Package nodecheck compares the configuration with the facts of the node (CF-63 to CF-66, PN-71):
// values that are valid by themselves, and that package config accepted, may not fit the node's
// addresses and pod CIDRs.
package nodecheck

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Setup is the input of [Check] beside the facts: settings of the user, and values derived from the
// host.
type Setup struct {
	// Families are the served ones, at least one, in any order. With both, the host is dual-stack
	// (PR-02).
	Families []lb.Family
	// Settings are as for [policy.ResolveNode], of any family.
	Settings policy.Settings
	// NodePortsUnset: the user did not configure which addresses answer NodePorts.
	NodePortsUnset bool
	// Healthz and Metrics are where servers listen, not valid if nowhere.
	Healthz, Metrics netip.AddrPort
	// Networks are the networks in the mode's section, by field, and Addresses the addresses of the
	// primary family.
	Networks  map[string][]netip.Prefix
	Addresses map[string]netip.Addr
	// Manifests: Services come from a folder. Load balancers then use the node without a Node
	// object.
	Manifests bool
	// Name returns the name that the user has given a field: the field, or a flag.
	Name func(field string) string
}

// Finding is one problem of the configuration that is only visible with the facts of the node.
type Finding struct {
	// Row of the specification (docs/behaviour.md): CF-63 to CF-66, PN-71.
	Row string
	// Fatal: at the start, the process should end. After the start, it continues.
	Fatal bool
	// Text names the flag or field, its value and the fault, in one sentence without its end.
	Text string
}

// Check compares the settings with the facts of this node (CF-63 to CF-66, PN-71). Call it when the
// facts arrive, or when the node turns out to be missing, and after each change of the facts; equal
// findings have equal texts, so that each can be reported once.
func Check(f cluster.Facts, s Setup) []Finding {
	c := checker{Setup: s, facts: f, ips: policy.ResolveNodeIPs(f, s.Settings)}
	c.Families = slices.Clone(s.Families)
	slices.SortStableFunc(c.Families, func(a, b lb.Family) int { return cmp.Compare(c.rank(a), c.rank(b)) })
	c.node()
	c.clusterCIDRs()
	c.podCIDRs()
	c.nodePorts()
	c.others()
	return c.found
}

// NoPodCIDRs is the error when the wait for pod CIDRs is over (PR-05).
func NoPodCIDRs(f cluster.Facts, waited time.Duration, name func(field string) string) error {
	missing := "has no spec.podCIDRs"
	if f.Node == nil {
		missing = "is not known"
	}
	return fmt.Errorf("%s NodeCIDR: the Node %q %s after %s: check that the cluster allocates them, such as with "+
		"--allocate-node-cidrs, and check %s",
		name("detectLocalMode"), f.NodeName, missing, waited, name("hostnameOverride"))
}

type checker struct {
	Setup
	facts cluster.Facts
	ips   policy.NodeIPs
	found []Finding
}

// rank puts the node's primary family first.
func (c *checker) rank(fam lb.Family) int {
	if fam == c.ips.Primary {
		return 0
	}
	return 1
}

func (c *checker) add(row string, fatal bool, format string, args ...any) {
	c.found = append(c.found, Finding{row, fatal, fmt.Sprintf(format, args...)})
}

func (c *checker) wrongFamily(fatal bool, what string) {
	text := fmt.Sprintf("%s, but the node is %s first", what, c.Families[0])
	if len(c.Families) == 1 {
		text = fmt.Sprintf("%s, but the node is %s only", what, c.Families[0])
	}
	c.add("CF-63", fatal, "%s", text)
}

// node is PN-71 and PR-06, and PR-03 without any address of the node.
func (c *checker) node() {
	without := "source ranges count as if it were in none" // SV-16
	if c.Settings.NodePortAddrs.Primary {
		without = "NodePorts on its primary address do not answer"
	}
	hint := ""
	if c.ips.Guessed {
		hint = fmt.Sprintf("; %s can name its address", c.Name("bindAddress"))
	}
	if c.facts.NodeGone {
		c.add("PR-06", false, "the Node %q was deleted: its last addresses, pod CIDRs and zone stay in force, and "+
			"load balancers skip this node", c.facts.NodeName)
	}
	costs := []string{"zone hints do not count"}
	if hint != "" {
		costs = []string{without, "zone hints do not count"}
	}
	if !c.Manifests {
		costs = append(costs, "load balancers skip this node")
	}
	switch {
	case c.facts.Node == nil:
		c.add("PN-71", false, "there is no Node %q, or none that the proxy may read (%s): %s%s", c.facts.NodeName,
			c.Name("hostnameOverride"), strings.Join(costs, ", "), hint)
	case hint != "":
		c.add("PR-03", false, "the Node %q has no address: %s%s", c.facts.NodeName, without, hint)
	case !slices.Contains(c.Families, c.ips.Primary):
		c.add("PR-02", false, "the node's first address %s is of %s, which is not served here", c.ips.Addrs[0],
			c.ips.Primary)
	}
}

func (c *checker) clusterCIDRs() {
	mode := c.Settings.DetectLocal
	byCluster := mode == "" || mode == policy.ClusterCIDR
	all := c.Settings.ClusterCIDRs
	if c.wrong(all) {
		c.wrongFamily(byCluster && len(c.Families) == 1, c.Name("clusterCIDR")+" "+list(all)+" has no "+
			c.Families[0].String()+" network")
	}
	switch {
	case !byCluster:
	case len(all) == 0:
		c.add("CF-66", false, "%s is not set: the proxy cannot distinguish traffic of pods from other traffic",
			c.Name("clusterCIDR"))
	default:
		for _, fam := range c.Families[1:] {
			if c.uses(fam) && !has(all, fam) {
				c.add("CF-66", false, "%s %s has no %s network: in %[3]s the proxy cannot distinguish traffic of "+
					"pods from other traffic", c.Name("clusterCIDR"), list(all), fam)
			}
		}
	}
}

func (c *checker) podCIDRs() {
	if c.facts.Node == nil {
		return
	}
	byNode := c.Settings.DetectLocal == policy.NodeCIDR
	all := c.facts.Node.PodCIDRs
	what := fmt.Sprintf("the Node %q has spec.podCIDRs %s", c.facts.NodeName, list(all))
	if c.wrong(all) {
		c.wrongFamily(byNode, what+", none of "+c.Families[0].String())
	}
	if mode := c.Settings.DetectLocal; mode == "" || mode == policy.ClusterCIDR {
		c.outsideCluster(all)
	}
	switch {
	case !byNode:
	case len(all) == 0:
		c.add("CF-66", false, "the Node %q has no spec.podCIDRs, which %s NodeCIDR needs: the proxy cannot "+
			"distinguish traffic of pods from other traffic", c.facts.NodeName, c.Name("detectLocalMode"))
	default:
		for _, fam := range c.Families[1:] {
			if c.uses(fam) && !has(all, fam) {
				c.add("CF-66", false, "%s, none of %s: in %[2]s the proxy cannot distinguish traffic of pods from "+
					"other traffic", what, fam)
			}
		}
	}
}

// outsideCluster is CF-67: pods whose addresses the detector does not recognise. A family without a
// cluster CIDR is CF-66.
func (c *checker) outsideCluster(podCIDRs []netip.Prefix) {
	cluster := c.Settings.ClusterCIDRs
	for _, p := range podCIDRs {
		contains := func(of netip.Prefix) bool { return of.Bits() <= p.Bits() && of.Contains(p.Addr()) }
		if has(cluster, lb.FamilyOf(p.Addr())) && !slices.ContainsFunc(cluster, contains) {
			c.add("CF-67", false, "%s %s does not contain the pod CIDR %s of the Node %q: the proxy treats these "+
				"pods as outside clients", c.Name("clusterCIDR"), list(cluster), p, c.facts.NodeName)
		}
	}
}

// nodePorts is CF-63 to CF-65 for nodePortAddresses.
func (c *checker) nodePorts() {
	a := c.Settings.NodePortAddrs
	name := c.Name("nodePortAddresses")
	switch {
	case c.NodePortsUnset && !a.Primary:
		c.add("CF-64", false, "%s is not set: NodePorts answer on every address of this machine; primary would leave "+
			"that to the node's own", name)
		return
	case !a.Primary && c.wrong(a.Prefixes):
		c.wrongFamily(false, fmt.Sprintf("%s %s has no %s address, which means every one", name, list(a.Prefixes),
			c.Families[0]))
	case !a.Primary && len(a.Prefixes) > 0:
		for _, fam := range c.Families[1:] {
			if c.uses(fam) && !has(a.Prefixes, fam) {
				c.add("CF-64", false,
					"%s %s has no %s address: NodePorts answer on every %[3]s address of this machine", name,
					list(a.Prefixes), fam)
			}
		}
	}
	for _, fam := range c.Families {
		every := fam.Everywhere()
		if !slices.Contains(a.Prefixes, every) {
			continue
		}
		needless := slices.DeleteFunc(slices.Clone(a.Prefixes), func(p netip.Prefix) bool {
			return p == every || lb.FamilyOf(p.Addr()) != fam
		})
		if len(needless) > 0 {
			c.add("CF-65", false, "%s: %s makes %s needless", name, every, list(needless))
		}
	}
}

// others is the rest of CF-63.
func (c *checker) others() {
	for field, a := range c.Addresses {
		if a.IsValid() && lb.FamilyOf(a) != c.Families[0] {
			c.wrongFamily(false, fmt.Sprintf("%s %s is not an address of %s", c.Name(field), a, c.Families[0]))
		}
	}
	if len(c.Families) > 1 {
		return
	}
	for field, all := range c.Networks {
		if c.wrong(all) {
			c.wrongFamily(false, fmt.Sprintf("%s %s has no %s network", c.Name(field), list(all), c.Families[0]))
		}
	}
	for _, server := range []struct {
		field string
		at    netip.AddrPort
	}{{"healthzBindAddress", c.Healthz}, {"metricsBindAddress", c.Metrics}} {
		if server.at.IsValid() && lb.FamilyOf(server.at.Addr().Unmap()) != c.Families[0] {
			c.wrongFamily(false, fmt.Sprintf("%s %s is not an address of %s", c.Name(server.field), server.at,
				c.Families[0]))
		}
	}
}

// wrong reports whether there are prefixes, and none is of the primary family.
func (c *checker) wrong(ps []netip.Prefix) bool { return len(ps) > 0 && !has(ps, c.Families[0]) }

// uses reports whether the cluster probably has Services of the family. A host that could serve
// IPv6 in a cluster without it needs no advice about it.
func (c *checker) uses(fam lb.Family) bool {
	if fam == c.Families[0] || has(c.facts.CIDRs, fam) || has(c.Settings.ClusterCIDRs, fam) {
		return true
	}
	n := c.facts.Node
	return n != nil && (slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return lb.FamilyOf(a) == fam }) ||
		has(n.PodCIDRs, fam))
}

func has(ps []netip.Prefix, fam lb.Family) bool {
	return slices.ContainsFunc(ps, func(p netip.Prefix) bool { return lb.FamilyOf(p.Addr()) == fam })
}

func list(ps []netip.Prefix) string { return lb.JoinPrefixes(ps, ",") }
