//go:build linux

package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"kube-proxy/lb"
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

// portID names a service port, the owner of chains.
type portID struct {
	service string
	proto   lb.Proto
}

func (u portID) chain(prefix string, more ...string) string {
	return prefix + hash(append([]string{u.service, u.proto.String()}, more...)...)
}
