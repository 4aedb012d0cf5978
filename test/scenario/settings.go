package scenario

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"kube-proxy/cluster"
	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Settings are the configuration under which a scenario happens.
type Settings struct {
	// NodeName is this node's name.
	NodeName string
	// Policy holds the settings of package policy, without Family.
	Policy policy.Settings
	// NodeHolds are extra addresses that node1 has in the lab.
	NodeHolds []netip.Prefix
	// HostPorts are ports of node1 that another program translates, as a CNI plugin does for
	// hostPort.
	HostPorts []HostPort
}

// HostPort is a TCP port of all addresses of node1, in the family of To, which another program
// redirects to To.
type HostPort struct {
	Port uint16
	To   netip.AddrPort
}

// defaults returns those of the product in nftables mode, with the lab's pod networks.
func defaults() Settings {
	return Settings{
		NodeName: "node1",
		Policy: policy.Settings{
			DetectLocal: policy.ClusterCIDR,
			ClusterCIDRs: []netip.Prefix{
				netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:10:1::/48"),
			},
			NodePortAddrs: policy.NodePortAddrs{Primary: true},
		},
	}
}

// For returns the settings of one family.
func (s Settings) For(f lb.Family) policy.Settings {
	p := s.Policy
	p.Family = f
	return p
}

// Held returns the event of the single addresses in NodeHolds.
func (s Settings) Held() (held cluster.NodeHolds) {
	for _, p := range s.NodeHolds {
		if p.IsSingleIP() {
			held.Addrs = append(held.Addrs, p.Addr())
		}
	}
	return held
}

// settings reads lines "name: value", named as the product's flags.
func (p *parser) settings(line int, data string) {
	for i, l := range lines(data) {
		name, value, ok := strings.Cut(l, ":")
		if !ok {
			p.errorf(line+i, "setting %q: want NAME: VALUE", l)
			continue
		}
		if err := p.s.Settings.set(name, strings.TrimSpace(value)); err != nil {
			p.errorf(line+i, "setting %s: %w", name, err)
		}
	}
}

func (s *Settings) set(name, value string) error {
	var err error
	switch name {
	case "node":
		s.NodeName = value
	case "masquerade-all":
		s.Policy.MasqueradeAll, err = strconv.ParseBool(value)
	case "allow-service-external-ips":
		var allow bool
		allow, err = strconv.ParseBool(value)
		s.Policy.NoExternalIPs = !allow
	case "external-ip-cidrs":
		s.Policy.ExternalIPCIDRs, err = parsePrefixes(value)
	case "detect-local-mode":
		s.Policy.DetectLocal = policy.LocalMode(value)
	case "cluster-cidr":
		s.Policy.ClusterCIDRs, err = parsePrefixes(value)
	case "pod-bridge-interface", "pod-interface-name-prefix":
		s.Policy.PodInterface = value
	case "nodeport-addresses":
		s.Policy.NodePortAddrs, err = parseNodePortAddrs(value)
	case "own-ports":
		s.Policy.OwnPorts, err = parseOwnPorts(value)
	case "node-holds":
		s.NodeHolds, err = parsePrefixes(value)
	case "host-ports":
		s.HostPorts, err = parseHostPorts(value)
	default:
		err = fmt.Errorf("unknown: want node, masquerade-all, allow-service-external-ips, external-ip-cidrs, " +
			"detect-local-mode, cluster-cidr, pod-bridge-interface, pod-interface-name-prefix, nodeport-addresses, " +
			"own-ports, node-holds or host-ports")
	}
	return err
}

// parseOwnPorts reads ports of servers of node1.
func parseOwnPorts(value string) (own []policy.OwnPort, err error) {
	for word := range strings.FieldsFuncSeq(value, isSeparator) {
		port, err := strconv.ParseUint(word, 10, 16)
		if err != nil {
			return nil, err
		}
		own = append(own, policy.OwnPort{Port: uint16(port), Of: "the proxy's"})
	}
	return own, nil
}

// parseNodePortAddrs reads CIDRs and the words primary, localhost and all (CF-37).
func parseNodePortAddrs(value string) (policy.NodePortAddrs, error) {
	var a policy.NodePortAddrs
	var cidrs []string
	for word := range strings.FieldsFuncSeq(value, isSeparator) {
		switch word {
		case "primary":
			a.Primary = true
		case "localhost":
			cidrs = append(cidrs, "127.0.0.0/8", "::1/128")
		case "all":
			cidrs = append(cidrs, "0.0.0.0/0", "::/0")
		default:
			cidrs = append(cidrs, word)
		}
	}
	var err error
	a.Prefixes, err = parsePrefixes(strings.Join(cidrs, ","))
	return a, err
}

func isSeparator(r rune) bool { return r == ',' || r == ' ' }

// parsePrefixes reads a list of prefixes, separated by commas; an empty value is an empty list.
func parsePrefixes(value string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for s := range strings.FieldsFuncSeq(value, isSeparator) {
		pfx, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, pfx)
	}
	return out, nil
}

// parseHostPorts reads a list such as 8091=10.1.1.11:8081.
func parseHostPorts(value string) ([]HostPort, error) {
	var out []HostPort
	for s := range strings.FieldsFuncSeq(value, isSeparator) {
		port, to, ok := strings.Cut(s, "=")
		n, err := strconv.ParseUint(port, 10, 16)
		if !ok || err != nil {
			return nil, fmt.Errorf("%q: want PORT=ADDRESS:PORT", s)
		}
		ap, err := netip.ParseAddrPort(to)
		if err != nil {
			return nil, fmt.Errorf("%q: want PORT=ADDRESS:PORT: %w", s, err)
		}
		out = append(out, HostPort{Port: uint16(n), To: ap})
	}
	return out, nil
}
