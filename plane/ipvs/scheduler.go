package ipvs

import (
	"cmp"

	"kube-proxy/internal/netlink/ipvs"
)

// schedulerOf returns the configured scheduler, or the default.
func schedulerOf(asked string) string { return cmp.Or(asked, schedulers()[0]) }

// stickyFlags are the flags of mh or sh for session affinity.
const stickyFlags = ipvs.Sched1

// schedulerFlags returns the flags of virtual servers with the scheduler. With sh and mh, a client
// whose real server drains goes to another one. mh counts the client's port too, as upstream does
// (DP-35); sh does not, so a client has one real server (TN-60).
func schedulerFlags(name string) ipvs.Flags {
	switch name {
	case "sh":
		return ipvs.Sched1
	case "mh":
		return ipvs.Sched1 | ipvs.Sched2
	}
	return 0
}
