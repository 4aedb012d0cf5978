//go:build linux

package ebpf_test

import (
	"testing"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane/ebpf"
	"kube-proxy/plane/nftables"
	"kube-proxy/test/planetest"
	"kube-proxy/trace"
)

// traced is what trace must know of the mode.
func traced(f lb.Family) trace.Mode {
	return ebpf.Mode(nftables.Mode()).Trace(mode.Settings{Family: f})
}

// differsIn has the scenarios from which the mode differs by intent.
var differsIn = map[string]string{
	"udp-endpoint-swapped": "A connected UDP socket has no packets to translate: when its endpoint leaves, " +
		"the socket is closed, and the program connects again.",
}

// TestConformance sends the packets of every scenario through the kernel.
func TestConformance(t *testing.T) {
	p := &planes{bpffs: bpffs(t)}
	planetest.Run(t, planetest.Config{Mode: "ebpf", New: p.new, Trace: traced, Sockets: true, DiffersIn: differsIn})
}
