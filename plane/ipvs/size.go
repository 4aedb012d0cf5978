package ipvs

import (
	"kube-proxy/lb"
	"kube-proxy/mode"
)

// The kernel's memory for one of each, in objects of 128 bytes. A real server also has 64 bytes for
// each CPU.
const (
	// stickyScheduler is the scheduler of virtual servers by mark with session affinity.
	stickyScheduler = "mh"

	serverObjects  = 8 // a virtual or a real server
	addressObjects = 8 // an address of kube-ipvs0 with its routes
	memberObjects  = 1 // a member of an ipset
)

// tables are the sizes of the schedulers' tables for each virtual server, in objects; other
// schedulers have no table.
var tables = map[string]int{"mh": 256, "sh": 16, "dh": 16, "lblc": 64, "lblcr": 64}

// weigh implements the mode's Weigh. Each address has a copy of the real servers; with a traffic
// policy Local, two virtual servers by mark have one more each.
func weigh(settings mode.Settings) func(lb.Size) int {
	table, sticky := tables[schedulerOf(optionsOf(settings.Blocks).IPVS.Scheduler)], tables[stickyScheduler]
	return func(s lb.Size) int {
		copies, marks, marked := s.Copies(lb.NodePortAddresses), 2*(s.Sets()-1), table
		if s.Affinity {
			marked = sticky
		}
		objects := s.Ports * (copies*(serverObjects+table+addressObjects+6*memberObjects) +
			marks*(serverObjects+marked))
		objects += s.Backends * ((copies+marks)*serverObjects + s.Sets()*memberObjects)
		objects += s.Ports * s.Ranged * 2 * (s.Ranges + 2) * memberObjects
		if s.FTP && s.Affinity {
			objects += copies * sticky
		}
		return objects
	}
}
