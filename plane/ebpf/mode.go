package ebpf

import (
	"slices"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Name is the mode's name.
const Name = "ebpf"

// facts are what the mode has on every system. It is the mode of the packet path with programs in
// front, and has its configuration, metrics and limits.
func facts(packets mode.Mode) mode.Mode {
	m := packets
	m.Name = Name
	m.OS = "linux"
	m.Doc =
		"eBPF programs connect sockets of pods and of the node to endpoints, without translation of packets; mode " +
			packets.Name + " serves all other traffic"
	m.Unasked = "" // by name only
	m.Options = options
	m.Reads = append(slices.Clone(packets.Reads), "ebpf")
	m.Metrics = nil
	for _, under := range packets.Metrics { // which describes them
		m.Metrics = append(m.Metrics, mode.Metric{Name: under.Name})
	}
	m.Metrics = append(m.Metrics,
		mode.Metric{Row: "EXT", Name: programsServing, Kind: mode.Gauge, Labels: []string{"ip_family"},
			Help: "1 while eBPF programs connect the sockets that socketLB selects, 0 while nftables rules serve all " +
				"connections for another reason"},
		mode.Metric{Row: "EXT", Name: heartbeatAge, Kind: mode.Gauge, Labels: []string{"ip_family"},
			Help: "Seconds since the proxy confirmed that it maintains the eBPF programs' tables; after " +
				"ebpf.heartbeat they connect no new sockets"},
		mode.Metric{Row: "EXT", Name: refusalsTotal, Kind: mode.Counter, Labels: []string{"ip_family", "reason"},
			Help: "Calls of sockets that failed: to a Service that rejects or drops, and bind() to the port of a " +
				"NodePort"},
		mode.Metric{Row: "EXT", Name: socketsNow, Kind: mode.Gauge, Labels: []string{"ip_family"},
			Help: "Sockets that eBPF programs connected to an endpoint or sent from, which are in the proxy's memory"},
		mode.Metric{Row: "EXT", Name: socketsLimit, Kind: mode.Gauge, Labels: []string{"ip_family"},
			Help: "Bound of ebpf_sockets, from the proxy's memory limit; one network namespace may have a fifteenth " +
				"of what is free, and further sockets take the packet path"},
		mode.Metric{Row: "EXT", Name: staleEndedTotal, Kind: mode.Counter, Labels: []string{"ip_family"},
			Help: "Sockets that ended because their endpoint was removed"},
		mode.Metric{Row: "EXT", Name: passedTotal, Kind: mode.Counter, Labels: []string{"ip_family", "reason"},
			Help: "Calls of sockets to Services that eBPF programs passed to the nftables rules, by reason"})
	m.Rules, m.Among = Name, packets.Rules
	m.Overrides, m.LocalhostSockets = true, true
	m.Weigh = func(s mode.Settings) func(lb.Size) int {
		under := packets.Weigh(s)
		return func(size lb.Size) int { return under(size) + weigh(size) }
	}
	return m
}

// weigh is how many elements of 128 bytes the tables have for a Service: of a backend, two of some
// 80 bytes each.
func weigh(s lb.Size) int {
	const backend = 2
	return s.Ports*s.Copies(1) + s.Sets()*(s.Ports+backend*s.Backends)
}

// The metrics of the programs.
const (
	programsServing = "ebpf_programs_serving"
	heartbeatAge    = "ebpf_heartbeat_age_seconds"
	refusalsTotal   = "ebpf_refusals_total"
	socketsNow      = "ebpf_sockets"
	socketsLimit    = "ebpf_sockets_limit"
	staleEndedTotal = "ebpf_stale_sockets_ended_total"
	passedTotal     = "ebpf_passed_total"
)
