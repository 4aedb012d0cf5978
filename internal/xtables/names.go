//go:build linux

package xtables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
)

// Table is one of the tables of iptables.
type Table uint8

const (
	Filter Table = iota
	NAT
	Mangle
	Tables          // number of tables that the plane writes
	Raw    = Tables // older versions had a chain there
)

var tableNames = [...]string{"filter", "nat", "mangle", "raw"}

func (t Table) String() string { return tableNames[t] }

// TableNamed returns the table of that name, if any kube-proxy ever wrote to it.
func TableNamed(name string) (t Table, ok bool) {
	i := slices.Index(tableNames[:], name)
	return Table(i), i >= 0
}

// ChainID names a chain.
type ChainID struct {
	Table Table
	Name  string
}

// Chain names a chain of the table.
func (t Table) Chain(name string) ChainID { return ChainID{t, name} }

// Permanent chains. Other software looks for them by name (G3).
const (
	Services          = "KUBE-SERVICES"          // nat, filter
	ExternalServices  = "KUBE-EXTERNAL-SERVICES" // filter
	ExternalNodePorts = "KUBE-EXTERNAL-NODEPORTS"
	NodePorts         = "KUBE-NODEPORTS" // nat, filter
	ProxyFirewall     = "KUBE-PROXY-FIREWALL"
	NodeFirewall      = "KUBE-FIREWALL" // shared with the kubelet: never flushed, never deleted
	Forward           = "KUBE-FORWARD"
	Postrouting       = "KUBE-POSTROUTING"
	MarkMasq          = "KUBE-MARK-MASQ"
	MarkOffCluster    = "KUBE-MARK-MASQ-OFF"
	Canary            = "KUBE-PROXY-CANARY" // in each table (DP-13)
)

// Prefixes of the names of a service port's chains (DP-02).
const (
	ClusterChain  = "KUBE-SVC-"
	LocalChain    = "KUBE-SVL-"
	ExternalChain = "KUBE-EXT-"
	FirewallChain = "KUBE-FW-"
	EndpointChain = "KUBE-SEP-"
)

// SourceList begins the names of chains of source ranges, of nat and of filter. A hash of the
// ranges follows, so that frontends with the same ranges share the chain. Upstream deletes those of
// nat, as it does branches; those of filter have no jumps to other chains.
const SourceList = FirewallChain + "SRC-"

// Prefixes of the names of the branches of nat's dispatchers. Upstream takes these for chains of
// service ports, and deletes unknown ones, all at once. Under other names, branches would stay when
// a node changes back to upstream, and jump to chains of service ports. Upstream could not delete
// these then, and all its restores would fail (G4). A suffix of DP-02 has no hyphen.
const (
	AddressBranch  = ClusterChain + "TO-"
	NodePortBranch = ClusterChain + "NP-"
)

// The prefixes of their names identify dynamic chains. They distinguish leftovers of an earlier
// process, ours or upstream's, from chains of other software.
var dynamic = [Tables][]string{
	Filter: {Services + "-", NodePorts + "-", "KUBE-EXTERNAL-", "KUBE-EXTNP-", "KUBE-PROXY-FW-", SourceList},
	NAT:    {ClusterChain, LocalChain, ExternalChain, FirewallChain, EndpointChain, "KUBE-XLB-"},
}

// IsDynamic reports whether a chain of that name is added and deleted with frontends.
func IsDynamic(id ChainID) bool {
	if id.Table == Filter && (id.Name == ExternalServices || id.Name == ExternalNodePorts) {
		return false
	}
	return slices.ContainsFunc(dynamic[id.Table], func(p string) bool { return strings.HasPrefix(id.Name, p) })
}

// kubelets are chains of mangle that show that a kubelet runs on the node (DP-14).
var kubelets = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// isKubelets reports whether the chain shows that the node has a kubelet.
func isKubelets(id ChainID) bool { return id.Table == Mangle && slices.Contains(kubelets, id.Name) }

// Hash returns the part of a chain's name that identifies what it serves: 16 characters of
// base32(sha256(parts)), as upstream's (DP-02).
func Hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return base32.StdEncoding.EncodeToString(h.Sum(nil))[:16]
}

// Ours reports whether the plane made the chain, or would.
func Ours(id ChainID) bool {
	switch id.Name {
	case Canary:
		return true
	case Services, NodePorts:
		return id.Table != Mangle
	case ExternalServices, ExternalNodePorts, ProxyFirewall, NodeFirewall, Forward:
		return id.Table == Filter
	case Postrouting, MarkMasq, MarkOffCluster:
		return id.Table == NAT
	}
	return IsDynamic(id)
}

// Chain is the content of a chain: rules without "-A NAME ", exactly as iptables-save prints them.
type Chain struct {
	ID    ChainID
	Rules []string
}

// Jump is a rule in a built-in chain, where others have rules too.
type Jump struct {
	From ChainID
	Rule string
}

// Bare returns the jump without comments.
func (j Jump) Bare() Jump { return Jump{j.From, WithoutComments(j.Rule)} }

// guardOfIPVS keeps packets to addresses of kube-ipvs0 from programs of the node (PN-43).
const guardOfIPVS = "KUBE-IPVS-FILTER"

// IsGuard reports whether a chain protects the programs of the node while kube-ipvs0 has addresses
// (TN-67).
func IsGuard(table, chain string) bool { return table == "filter" && chain == guardOfIPVS }

// Leftover reports whether a chain of a table, such as KUBE-SERVICES of nat, is one that [Remove]
// would remove.
func Leftover(table, chain string) bool {
	t, ok := TableNamed(table)
	return ok && isLeftover(ChainID{t, chain})
}

// isLeftover reports whether a kube-proxy made the chain. Other software also has chains with the
// prefix KUBE-.
func isLeftover(id ChainID) bool {
	return id.Table < Tables && id.Name != NodeFirewall && Ours(id) || slices.Contains(otherModes[id.Table], id.Name)
}

// Chains of older versions and of mode ipvs (DP-33), beside those of the plane. Mode userspace has
// its own removal. KUBE-FIREWALL of nat was of mode ipvs; the kubelet has its own in filter.
var otherModes = [...][]string{
	NAT:    {"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", NodeFirewall},
	Filter: {"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", guardOfIPVS, "KUBE-IPVS-OUT-FILTER"},
	Mangle: {ProxyFirewall, "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-IN", "KUBE-IPVS-OUT", "KUBE-IPVS-SENT",
		"KUBE-IPVS-ORIGIN", "KUBE-IPVS-ORIGIN-PODS", "KUBE-IPVS-ORIGIN-HOST", "KUBE-IPVS-ORIGIN-ANYWHERE"},
	Raw: {Canary},
}

// firewall is a chain of the kubelet's; kube-proxy creates it if it is missing.
var firewall = ChainID{Filter, NodeFirewall}

// builtIn are the built-in chains.
var builtIn = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// IsBuiltIn reports whether a name is that of a built-in chain.
func IsBuiltIn(name string) bool { return slices.Contains(builtIn, name) }
