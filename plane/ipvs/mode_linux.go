package ipvs

import (
	"kube-proxy/internal/kernel"
	"kube-proxy/mode"
)

// Mode returns the mode ipvs.
func Mode() mode.Mode {
	m := facts()
	m.Sysctls, m.Load = sysctls, kernel.LoadIPVS
	m.Able, m.Modules = able, modules
	m.Remove = remove
	return m
}

// sysctls are the settings of DP-30.
func sysctls(s mode.Settings) []mode.Sysctl {
	all := []mode.Sysctl{
		{Name: "net.ipv4.vs.conntrack", Value: "1"},
		// A new connection from a port that was used a moment ago would wait for a second. Later kernels have the cause
		// mended; earlier ones do not heed it.
		{Name: "net.ipv4.vs.conn_reuse_mode", Value: "0", From: [2]int{4, 1}, Before: [2]int{5, 9}},
		{Name: "net.ipv4.vs.expire_nodest_conn", Value: "1"},
		{Name: "net.ipv4.vs.expire_quiescent_template", Value: "1", Optional: true},
		{Name: "net.ipv4.ip_forward", Value: "1"},
	}
	if s.IPVS.StrictARP {
		const asks = "--ipvs-strict-arp (ipvs.strictARP)"
		all = append(all,
			mode.Sysctl{Name: "net.ipv4.conf.all.arp_ignore", Value: "1", Asks: asks},
			mode.Sysctl{Name: "net.ipv4.conf.all.arp_announce", Value: "2", Asks: asks})
	}
	return all
}
