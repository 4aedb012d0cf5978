//go:build linux

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
)

// table is one of the tables of iptables.
type table uint8

const (
	filter table = iota
	nat
	mangle
	tables          // so many are those that the plane writes
	raw    = tables // where older versions had a chain
)

var tableNames = [...]string{"filter", "nat", "mangle", "raw"}

func (t table) String() string { return tableNames[t] }

// tableNamed returns the table of that name, unless nobody's kube-proxy has ever written one.
func tableNamed(name string) (t table, ok bool) {
	i := slices.Index(tableNames[:], name)
	return table(i), i >= 0
}

// chainID names a chain.
type chainID struct {
	table table
	name  string
}

// Chains that are there whatever the rows say. Other software looks for them by name (G3).
const (
	services          = "KUBE-SERVICES"          // nat, filter
	externalServices  = "KUBE-EXTERNAL-SERVICES" // filter
	externalNodePorts = "KUBE-EXTERNAL-NODEPORTS"
	nodePorts         = "KUBE-NODEPORTS" // nat, filter
	proxyFirewall     = "KUBE-PROXY-FIREWALL"
	nodeFirewall      = "KUBE-FIREWALL" // shared with the kubelet: never flushed, never deleted
	forward           = "KUBE-FORWARD"
	postrouting       = "KUBE-POSTROUTING"
	markMasq          = "KUBE-MARK-MASQ"
	markOffCluster    = "KUBE-MARK-MASQ-OFF"
	canary            = "KUBE-PROXY-CANARY" // in each table (DP-13)
)

// The beginnings of the names of chains of one service port (DP-02).
const (
	clusterChain  = "KUBE-SVC-"
	localChain    = "KUBE-SVL-"
	externalChain = "KUBE-EXT-"
	firewallChain = "KUBE-FW-"
	endpointChain = "KUBE-SEP-"
)

// sourceList begins the names of chains of source ranges, of nat and of filter. What follows is a hash of the ranges: whoever
// has the same ones shares the chain. Upstream deletes those of nat, as it does branches; those of filter lead nowhere.
const sourceList = firewallChain + "SRC-"

// The beginnings of the names of the branches of nat's dispatchers. Upstream takes these for chains of service ports, and
// deletes those that it does not know, all at once. Else branches would stay behind when a node changes back to it, lead to
// chains of service ports, and keep them from being deleted: no restore of upstream's would succeed any more (G4). A
// suffix of DP-02 has no hyphen.
const (
	addressBranch  = clusterChain + "TO-"
	nodePortBranch = clusterChain + "NP-"
)

// Dynamic chains are recognised by the beginnings of their names, so that those that an earlier process left
// behind, ours or upstream's, can be told from chains of others.
var dynamic = [tables][]string{
	filter: {services + "-", nodePorts + "-", "KUBE-EXTERNAL-", "KUBE-EXTNP-", "KUBE-PROXY-FW-", sourceList},
	nat:    {clusterChain, localChain, externalChain, firewallChain, endpointChain, "KUBE-XLB-"},
}

// isDynamic reports whether a chain of that name is added and deleted with rows.
func isDynamic(id chainID) bool {
	if id.table == filter && (id.name == externalServices || id.name == externalNodePorts) {
		return false
	}
	for _, p := range dynamic[id.table] {
		if strings.HasPrefix(id.name, p) {
			return true
		}
	}
	return false
}

// kubelets are chains of mangle by which the kubelet can be known to be there (DP-14).
var kubelets = []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}

// isKubelets reports whether the chain shows that there is a kubelet.
func isKubelets(id chainID) bool { return id.table == mangle && slices.Contains(kubelets, id.name) }

// hash is the part of a chain's name that stands for what it serves: 16 characters of base32(sha256(parts)),
// as upstream's (DP-02).
func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
	}
	return base32.StdEncoding.EncodeToString(h.Sum(nil))[:16]
}

// ours reports whether the plane made the chain, or would.
func ours(id chainID) bool {
	switch id.name {
	case canary:
		return true
	case services, nodePorts:
		return id.table != mangle
	case externalServices, externalNodePorts, proxyFirewall, nodeFirewall, forward:
		return id.table == filter
	case postrouting, markMasq, markOffCluster:
		return id.table == nat
	}
	return isDynamic(id)
}

// chain is a chain's content: rules without "-A NAME ", in the form in which iptables-save prints them, so that
// what is read can be compared with what is wanted.
type chain struct {
	id    chainID
	rules []string
}

// jump is a rule in a built-in chain, where others have rules too.
type jump struct {
	from chainID
	rule string
}

// bare is the jump without comments.
func (j jump) bare() jump { return jump{j.from, WithoutComments(j.rule)} }

// guardOfIPVS keeps packets to addresses of kube-ipvs0 from programs of the node (PN-43).
const guardOfIPVS = "KUBE-IPVS-FILTER"

// IsGuard reports whether a chain protects the programs of the node while kube-ipvs0 has addresses (TN-67).
func IsGuard(table, chain string) bool { return table == "filter" && chain == guardOfIPVS }

// Leftover reports whether a chain of a table, such as KUBE-SERVICES of nat, is one that [Remove] would remove.
func Leftover(table, chain string) bool {
	t, ok := tableNamed(table)
	return ok && isLeftover(chainID{t, chain})
}

// isLeftover reports whether a kube-proxy made the chain. Other software has chains that begin with KUBE- as well.
func isLeftover(id chainID) bool {
	return id.table < tables && id.name != nodeFirewall && ours(id) || slices.Contains(otherModes[id.table], id.name)
}

// Chains of older versions and of mode ipvs (DP-33), beside those of the plane. Mode userspace has its own removal. nat's
// KUBE-FIREWALL was ipvs'; the kubelet has its own in filter.
var otherModes = [...][]string{
	nat:    {"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", nodeFirewall},
	filter: {"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", guardOfIPVS, "KUBE-IPVS-OUT-FILTER"},
	mangle: {proxyFirewall, "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-IN", "KUBE-IPVS-OUT", "KUBE-IPVS-SENT",
		"KUBE-IPVS-ORIGIN", "KUBE-IPVS-ORIGIN-PODS", "KUBE-IPVS-ORIGIN-HOST", "KUBE-IPVS-ORIGIN-ANYWHERE"},
	raw: {canary},
}

// firewall is the chain that the kubelet has and kube-proxy makes where it has none.
var firewall = chainID{filter, nodeFirewall}

// builtIn are the chains in which packets begin.
var builtIn = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// isBuiltIn reports whether packets may begin in chains of that name.
func isBuiltIn(name string) bool {
	for _, n := range builtIn {
		if n == name {
			return true
		}
	}
	return false
}
