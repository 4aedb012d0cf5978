//go:build linux

package ipvs

import (
	"kube-proxy/internal/once"
	"kube-proxy/mode"
)

// notices are messages for the operator, each sent once.
type notices struct {
	all      []mode.Notice
	reported once.Keys[string]
}

func (n *notices) report(id, text string, args ...any) {
	if n.reported.First(id) {
		n.all = append(n.all, mode.Notice{Text: text, Args: args})
	}
}

// late reports that all marks are in use.
func (n *notices) late(services int) {
	if services > 0 {
		n.report("marks", "All firewall marks are in use: some Services route packets from pods or from this node "+
			"differently from others "+
			"(externalTrafficPolicy: Local), and those packets are refused; reduce the number of such Services and "+
			"restart kube-proxy, or choose mode nftables", "refused", services)
	}
}

// foreign reports virtual servers of other programs.
func (n *notices) foreign(f foreigners) {
	if len(f.ours) > 0 {
		n.report("at our keys", "Virtual servers of others have addresses and ports of Services, and lie in "+
			"--ipvs-exclude-cidrs (ipvs.excludeCIDRs): "+
			"these Services are not served there until they are removed", "virtualServers", len(f.ours), "first",
			f.ours[0].String())
	}
	if rest := f.n - len(f.ours); rest > 0 {
		n.report("others", "Leaving virtual servers of others at addresses that no Service has",
			"virtualServers", rest)
	}
}

// Notices implements mode.Plane.
func (p *Plane) Notices() []mode.Notice {
	all := p.notices.all
	p.notices.all = nil
	return all
}
