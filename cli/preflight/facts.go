package preflight

import (
	"net/netip"
	"time"

	"kube-proxy/internal/system"
	"kube-proxy/lb"
)

// Known is a fact, or the reason why it is unknown.
type Known[T any] struct {
	Value T
	Err   error
}

func known[T any](v T, err error) Known[T] { return Known[T]{v, err} }

// InTheWay is a rule of another program that is in the way of a Service's packets, and the command
// that says more.
type InTheWay struct{ Seen, Next string }

// Facts are the results of the probes on a node.
type Facts struct {
	// OS is the operating system, as runtime.GOOS names it.
	OS string
	// Kernel is its release.
	Kernel Known[string]
	// Lacks are capabilities that a proxy needs and this process has not.
	Lacks Known[[]string]
	// OwnNamespace: the network namespace is not that of process 1.
	OwnNamespace Known[bool]

	Abilities []Ability
	// Waits lists requirements that the node lacks for the mode that would run, and that the proxy
	// would wait for (mode.Mode.Lacks).
	Waits    Known[[]error]
	Programs []Program
	// InTheWay are rules of other programs that stop a Service's packets, or lead them elsewhere.
	InTheWay Known[[]InTheWay]
	// Chains are those of nf_tables, in the families inet, ip and ip6.
	Chains Known[[]Chain]
	// Legacy are the chains of the legacy back end of iptables.
	Legacy Known[[]Chain]

	// Writer is this project's kube-proxy that runs in this network namespace; "" without one.
	Writer Known[string]
	// VirtualServers is how many IPVS has.
	VirtualServers Known[int]
	// BPF are the names of the BPF programs of the kernel.
	BPF     Known[[]string]
	Links   Known[[]Link]
	Routes  Known[[]Route]
	Sockets Known[[]Socket]
	// Sysctls are those that Judge reads, by name; one that the kernel does not have is "".
	Sysctls Known[map[string]string]
	// Changes are the sysctls that the configuration would change.
	Changes Known[[]system.Change]
	// Elsewhere are assignments in the files that sysctl.d reads when the machine starts.
	Elsewhere Known[[]Assignment]
	// ReadOnly: /proc/sys cannot be written.
	ReadOnly Known[bool]

	// Memory is that of the machine, in bytes.
	Memory Known[uint64]
	// Unsynchronised: the kernel's clock is not held to a reference.
	Unsynchronised Known[bool]
	// Descriptors is the hard limit of file descriptors of this process.
	Descriptors Known[uint64]

	// Firewall is Windows Firewall.
	Firewall Known[Firewall]

	// Cluster is what the API server says; nil without one.
	Cluster *Cluster
}

// Ability is whether a mode can serve a family here.
type Ability struct {
	Mode   string
	Family lb.Family
	// Able is nil if it can. Reduced is what it then does without; nil for nothing.
	Able, Reduced error
	// Unasked is the reason why it was not tried; nil if it was.
	Unasked error
	// Modules are those that the kernel would have to load. Loadable: its modules on disk include
	// all of them.
	Modules  []string
	Loadable bool
}

// Program is one that a mode may run.
type Program struct {
	Name, Path string // Path is "" if it is not to be found
	Version    string
	Err        error // why its version is unknown
}

// Chain is a chain of a packet filter.
type Chain struct {
	Family string // inet, ip or ip6
	Table  string
	Name   string
	// Hook is its hook, such as forward; "" if other chains jump to it. Drop: its policy is drop.
	Hook string
	Drop bool
	// Rules is how many it has, as far as they were counted.
	Rules int
}

// Link is a network interface.
type Link struct {
	Name, Type string
	Index, MTU int
	Up         bool
	Addrs      []netip.Prefix
	// RPFilter is rp_filter of the interface, "" if it has none.
	RPFilter string
}

// Route is an entry of the main table; Dst is valid, a /0 for a default route.
type Route struct {
	Dst  netip.Prefix
	Link int
}

// Socket is a listening socket of TCP, or a bound one of UDP.
type Socket struct {
	At    netip.AddrPort
	Proto string // tcp, udp
	Owner string // "process 12 (nginx)"; "" if it cannot be seen
}

// Assignment is a line of a file of sysctl.d.
type Assignment struct {
	Name, Value string
	Where       string // file:line
}

// Cluster has the answers of an API server.
type Cluster struct {
	// Server is its address, and Version its own version.
	Server  string
	Version Known[string]
	// Node is the node's own object.
	Node Known[Node]
	// Denied are the requests of the proxy without permission, such as "watch services".
	Denied Known[[]string]
	// ServiceCIDRs are the networks of cluster IPs; none if the server has no such objects.
	ServiceCIDRs Known[[]netip.Prefix]
	// Ahead is by how much the server's clock is ahead of this machine's.
	Ahead Known[time.Duration]
}

// Node is a Node object.
type Node struct {
	Found bool
	Addrs []netip.Addr
}
