package ipvs

import (
	"cmp"

	"kube-proxy/internal/ipvswire"
	"kube-proxy/mode"
)

// schedulerOf returns the scheduler that is asked for, or the usual one.
func schedulerOf(asked string) string { return cmp.Or(asked, mode.Schedulers()[0]) }

// schedulerFlags are those that virtual servers have under the scheduler: sh and mh spread the connections of one client, by its port (DP-35),
// and lead a client whose backend takes no new connections to another one; those whose backend drains would be refused else.
func schedulerFlags(name string) ipvswire.Flags {
	switch name {
	case "sh", "mh":
		return ipvswire.Sched1 | ipvswire.Sched2
	}
	return 0
}
