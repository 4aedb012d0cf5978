package scenario

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"kube-proxy/lb"
	"kube-proxy/policy"
)

// Settings are the configuration under which a scenario happens.
type Settings struct {
	// NodeName is this node's name.
	NodeName string
	// Policy is what package policy takes, with Family left open.
	Policy policy.Settings
	// NodeHolds are extra addresses that node1 has in the lab.
	NodeHolds []netip.Prefix
}

// defaults are those of the product in nftables mode, on the lab's pod networks.
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
	case "detect-local-mode":
		s.Policy.DetectLocal = policy.LocalMode(value)
	case "cluster-cidr":
		s.Policy.ClusterCIDRs, err = parsePrefixes(value)
	case "pod-bridge-interface", "pod-interface-name-prefix":
		s.Policy.PodInterface = value
	case "nodeport-addresses":
		s.Policy.NodePortAddrs, err = parseNodePortAddrs(value)
	case "node-holds":
		s.NodeHolds, err = parsePrefixes(value)
	default:
		err = fmt.Errorf("unknown: want node, masquerade-all, detect-local-mode, cluster-cidr, " +
			"pod-bridge-interface, pod-interface-name-prefix, nodeport-addresses or node-holds")
	}
	return err
}

func parseNodePortAddrs(value string) (policy.NodePortAddrs, error) {
	var a policy.NodePortAddrs
	if value == "primary" {
		a.Primary = true
		return a, nil
	}
	var err error
	a.Prefixes, err = parsePrefixes(value)
	return a, err
}

// parsePrefixes reads a list of prefixes, separated by commas; an empty value is an empty list.
func parsePrefixes(value string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for s := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		pfx, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, pfx)
	}
	return out, nil
}
