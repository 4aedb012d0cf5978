//go:build linux

package ebpf

import (
	"fmt"

	"github.com/cilium/ebpf"

	"kube-proxy/mode"
)

// Why the packet path serves a call to a frontend, as programs number it.
const (
	_ uint8 = iota
	byOff
	byBound
	byExempt
	byScope
	byUnknown
	byOwn
	byNode
	bySources
	byMasquerade
	byExternalIP
	byNoBackend
	byEndpoint
	byShared
	byAffinity
	byFlows
	byStorage
	byKernel
)

// passage is a reason for which programs pass a call to the packet path.
type passage struct{ label, words string }

// passages are the reasons, for metrics and for people.
var passages = [...]passage{
	byOff:        {"off", "they are switched off, or the heartbeat of the proxy is old"},
	byBound:      {"bound", "the socket is bound to a device or a loopback address"},
	byExempt:     {"exempt", "the network namespace or the cgroup is exempt"},
	byScope:      {"scope", "they serve sockets of the node alone"},
	byUnknown:    {"unknown_namespace", "no device of the network namespace leads to the node"},
	byOwn:        {"own_address", "the address is one of the client's network namespace"},
	byNode:       {"node_address", "the node has the address: packets go to its holder, as NodeLocal DNSCache"},
	bySources:    {"source_ranges", "the frontend has source ranges, and most sockets have no address yet"},
	byMasquerade: {"masquerade", "endpoints must see the node as the client"},
	byExternalIP: {"external_ip", "an external IP may be the address of a pod: the client's network decides"},
	byNoBackend:  {"no_backend", "there is no endpoint, and a UDP socket may connect early, or the endpoints change"},
	byEndpoint:   {"endpoint_is_frontend", "an endpoint is a frontend too, so rules draw among all"},
	byShared:     {"shared_endpoint", "another destination of the UDP socket has the same endpoint"},
	byAffinity:   {"affinity", "the client uses too many Services with affinity"},
	byFlows:      {"flows", "the UDP socket has too many destinations"},
	byStorage:    {"storage", "the bound on sockets is reached"},
	byKernel:     {"kernel_socket", "the kernel uses the socket, as for MPTCP, NFS, SMB, Ceph, iSCSI, NVMe and L2TP"},
}

// passed calls f with the number of calls to frontends that took the packet path, by reason.
func passed(m *ebpf.Map, f func(reason string, n uint64)) error {
	for reason := 1; reason < len(passages); reason++ {
		n, err := total(m, uint32(reason))
		if err != nil {
			return fmt.Errorf("read the number of passed calls: %w", err)
		}
		f(passages[reason].label, n)
	}
	return nil
}

// measurePassed emits these numbers.
func measurePassed(m *ebpf.Map, emit mode.Emit) error {
	return passed(m, func(reason string, n uint64) { emit(passedTotal, float64(n), reason) })
}
