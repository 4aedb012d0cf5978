// Package hns is the data plane for --proxy-mode kernelspace, of Windows. It is not built yet: there is what configuration
// needs to know of it.
package hns

import "kube-proxy/mode"

// Mode returns the mode kernelspace.
func Mode() mode.Mode {
	return mode.Mode{
		Name:  "kernelspace",
		Doc:   "load balancers of the Host Networking Service of Windows",
		OS:    "windows",
		Block: "iptables",
		Reads: []string{"winkernel"},
		Rules: "hns",
	}
}
