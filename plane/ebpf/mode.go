// Package ebpf is the data plane for --proxy-mode ebpf. It is not built yet: there is what configuration needs to know of it.
package ebpf

import "kube-proxy/mode"

// Mode returns the mode ebpf.
func Mode() mode.Mode {
	return mode.Mode{
		Name:  "ebpf",
		OS:    "linux",
		Doc:   "programs that the kernel runs for each connection or packet, with maps of Services and endpoints",
		Block: "ebpf",
		Reads: []string{"ebpf"},
		Rules: "ebpf",
	}
}
