package system

import (
	"errors"
	"fmt"
	"net/netip"

	"kube-proxy/internal/kernel"
)

// mode makes the settings that the mode needs from its start on.
func (j *job) mode(s Settings) {
	if s.Mode == "ipvs" {
		j.ipvs(s.StrictARP)
	}
}

// ipvs makes the settings of DP-30.
func (j *job) ipvs(strictARP bool) {
	const asks = "--proxy-mode ipvs (mode)"
	if j.tree.Live() {
		if err := kernel.LoadIPVS(); err != nil {
			j.errs = append(j.errs, fmt.Errorf("%w; asked for by %s", err, asks))
			return
		}
	}
	j.set(sysctl{name: "net.ipv4.vs.conntrack", value: "1", asks: asks})
	if v, err := j.tree.Running(); err != nil {
		j.errs = append(j.errs, err)
	} else if v.AtLeast(4, 1) && !v.AtLeast(5, 9) {
		// There, a new connection from a port that was used a moment ago waits for a second. Later kernels have the
		// cause mended; earlier ones do not heed it.
		j.set(sysctl{name: "net.ipv4.vs.conn_reuse_mode", value: "0", asks: asks})
	}
	j.set(sysctl{name: "net.ipv4.vs.expire_nodest_conn", value: "1", asks: asks})
	j.set(sysctl{name: "net.ipv4.vs.expire_quiescent_template", value: "1", asks: asks, optional: true})
	j.set(sysctl{name: "net.ipv4.ip_forward", value: "1", asks: asks})
	if strictARP {
		const asks = "--ipvs-strict-arp (ipvs.strictARP)"
		j.set(sysctl{name: "net.ipv4.conf.all.arp_ignore", value: "1", asks: asks})
		j.set(sysctl{name: "net.ipv4.conf.all.arp_announce", value: "2", asks: asks})
	}
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// routeLocalnet lets packets of 127.0.0.1 leave for pods. A plane that runs does it after its rule against martians is
// in force; with --init-only that rule comes with the next process.
func (j *job) routeLocalnet(s Settings) {
	if s.Mode != "iptables" || !s.LocalhostNodePorts {
		return
	}
	for _, p := range s.NodePorts {
		if p.Overlaps(loopback) {
			j.set(sysctl{name: "net.ipv4.conf.all.route_localnet", value: "1",
				asks: "--iptables-localhost-nodeports (iptables.localhostNodePorts), where false does without"})
			return
		}
	}
}

// forwarding warns if the kernel does not forward what the proxy has translated. To set it is the business of who
// sets up the node, but in the mode ipvs.
func (j *job) forwarding(s Settings) {
	if s.Mode == "userspace" { // connections end at the proxy
		return
	}
	for _, f := range []struct {
		used       bool
		name, what string
	}{
		{s.IPv4, "net.ipv4.ip_forward", "IPv4"},
		{s.IPv6, "net.ipv6.conf.all.forwarding", "IPv6"},
	} {
		if !f.used {
			continue
		}
		value, err := j.tree.Sysctl(f.name)
		if err == nil && value != "0" {
			continue
		}
		if err == nil {
			err = errors.New("it is 0")
		}
		j.warn("", "sysctl %s: %v: %s connections from pods and from other machines do not reach the endpoints of Services; "+
			"set it to 1 when the node is set up", f.name, err, f.what)
	}
}
