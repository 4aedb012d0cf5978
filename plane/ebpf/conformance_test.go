//go:build linux

package ebpf

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/kerneltest"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// traced is what trace must know of the mode.
func traced(f lb.Family) trace.Mode {
	return Mode(nftables.Mode()).Trace(mode.Settings{Family: f})
}

// differsIn has the scenarios from which the mode differs by intent.
var differsIn = map[string]string{
	"udp-endpoint-swapped": "A connected UDP socket has no packets to translate: when its endpoint leaves, " +
		"the socket is closed, and the program connects again.",
}

// core has the scenarios for emulated kernels: each class of client, kind of frontend and protocol,
// and each change. What the packet path writes for the others mode nftables proves there.
var core = []string{"all-ways-in", "established-connections", "external-policy-local",
	"external-policy-local-none-local", "hairpin-affinity", "no-endpoints", "restart", "session-affinity",
	"source-ranges", "udp", "udp-endpoint-swapped", "unknown-port"}

// TestConformance sends the packets of every scenario through the kernel.
func TestConformance(t *testing.T) {
	kerneltest.Later(t)
	p := &planes{bpffs: bpffs(t)}
	planetest.Run(t, planetest.Config{Mode: "ebpf", New: p.new, Trace: traced, Sockets: true,
		DiffersIn: differsIn, Core: core})
}
