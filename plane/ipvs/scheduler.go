package ipvs

import (
	"cmp"

	"kube-proxy/mode"
)

// schedulerOf returns the scheduler that is asked for, or the usual one.
func schedulerOf(asked string) string { return cmp.Or(asked, mode.Schedulers()[0]) }

// Flags of virtual servers (IP_VS_SVC_F_SCHED_SH_… and …_MH_…), which mean the same to both schedulers that read them.
const (
	// hashFallback: a client whose backend takes no new connections goes to another one. Without it, those whose backend drains are refused.
	hashFallback = 1 << 3
	// hashPort: the source port counts too, so that the connections of one client spread (DP-35).
	hashPort = 1 << 4
)

// schedulerFlags are those that virtual servers have under the scheduler.
func schedulerFlags(name string) uint32 {
	switch name {
	case "sh", "mh":
		return hashFallback | hashPort
	}
	return 0
}
