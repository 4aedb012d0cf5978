package userspace

import "kube-proxy/mode"

// Mode returns the mode userspace.
func Mode() mode.Mode {
	return mode.Mode{
		Name:      "userspace",
		Doc:       "connections end at the proxy, which opens others to the endpoints; rules of iptables lead to it",
		Unasked:   true,
		Annotated: true,

		Block: "iptables",
		Reads: []string{"iptables.masqueradeBit", "iptables.masqueradeAll", "iptables.syncPeriod", "iptables.minSyncPeriod",
			"portRange", "udpIdleTimeout", "userspace"},
		LocalhostNodePorts: true,
		Terminates:         true,

		Rules: "iptables",
	}
}
