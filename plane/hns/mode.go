package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
)

// Mode returns the mode kernelspace.
func Mode() mode.Mode { return modeOn(Open) }

// modeOn returns the mode on the HNS that open returns.
func modeOn(open func() (HNS, error)) mode.Mode {
	return mode.Mode{
		Name: "kernelspace",

		Texts: mode.Texts{
			Doc:    "load balancers of the Host Networking Service of Windows",
			Loader: "HNS, as JSON",
			Show:   "hnsdiag list loadbalancers",
			Flush:  "hnsdiag delete all",
		},

		Selection: mode.Selection{
			OS:      "windows",
			Unasked: "windows",
			Able: func(s mode.Settings) error {
				if err := able(open, s.Family); err != nil { // no other mode replaces it silently (CF-19)
					return fmt.Errorf("%w: provide that, or use --proxy-mode=userspace", err)
				}
				return nil
			},
			Lacks: func(ctx context.Context, s mode.Settings) []error { return missing(ctx, open, ConfigOf(s)) },
		},

		Config: mode.Config{
			Options:   options,
			Block:     "iptables",
			Addresses: namedAddresses,
			Reads: []string{"iptables.syncPeriod", "iptables.minSyncPeriod", "winkernel",
				"windowsIgnoreSourceRanges"},
		},

		Planes: mode.Planes{
			New: func(s mode.Settings) (mode.Plane, error) {
				h, err := open()
				if err != nil {
					return nil, err
				}
				if err := able(open, s.Family); s.Family == lb.IPv6 && errors.Is(err, plane.ErrUnsupported) {
					return nil, err // Able checks the first family
				}
				cfg := ConfigOf(s)
				cfg.HNS = h
				return New(cfg)
			},
			Render:  func(s mode.Settings, want *lb.Table) ([]byte, error) { return Render(ConfigOf(s), want) },
			Metrics: metrics,
			Weigh:   func(mode.Settings) func(lb.Size) int { return weigh },
		},

		Deviations: mode.Deviations{
			Served:        kept,
			PassesUnknown: true,
		},

		Objects: mode.Objects{
			Rules: "hns",
			Remove: func(ctx context.Context, what mode.Removal) (mode.Report, error) {
				return remove(ctx, open, what)
			},
		},
	}
}

// ConfigOf converts the configuration for a plane.
func ConfigOf(s mode.Settings) Config {
	o := optionsOf(s.Blocks)
	w := o.Winkernel
	return Config{
		Family: s.Family, Network: w.NetworkName, SourceVIP: o.sourceVIP(), DSR: w.EnableDSR,
		RootEndpoint: w.RootHnsEndpointName, ForwardHealthCheckVIP: w.ForwardHealthCheckVip, HealthzPort: s.HealthzPort,
		IgnoreSourceRanges: o.WindowsIgnoreSourceRanges,
	}
}

// missing returns the errors about objects that the mode waits for on this node.
func missing(ctx context.Context, open func() (HNS, error), cfg Config) (all []error) {
	h, err := open()
	if err != nil {
		return []error{err}
	}
	cfg.Network = cmp.Or(cfg.Network, os.Getenv(networkVariable))
	list, err := h.Networks(ctx, cfg.Network)
	if err != nil {
		return []error{err}
	}
	return Missing(cfg, list)
}

// Missing returns the errors about settings that the network of the configured name lacks.
func Missing(cfg Config, list []Network) (all []error) {
	net, err := pick(cfg.Network, list)
	if err != nil {
		return []error{err}
	}
	all = net.lacks(cfg.SourceVIP)
	if net.overlay && cfg.SourceVIP.IsValid() && !lb.Within(net.subnets, cfg.SourceVIP) {
		all = append(all, fmt.Errorf("the source VIP %s is in no subnet of the HNS network %q: %v", cfg.SourceVIP,
			net.name, net.subnets))
	}
	return all
}

// lacks returns errors about settings that HNS must still add to a network, and about a missing
// source VIP of an overlay.
func (n *network) lacks(sourceVIP netip.Addr) (all []error) {
	if !n.management.IsValid() {
		all = append(all, fmt.Errorf("the HNS network %q has no ManagementIP yet, which is this node's address",
			n.name))
	}
	if n.overlay && n.mac == "" {
		all = append(all, fmt.Errorf("the HNS network %q has no host MAC yet, that of the interface with its "+
			"ManagementIP", n.name))
	}
	if n.overlay && !sourceVIP.IsValid() {
		all = append(all, fmt.Errorf("the HNS network %q is an overlay: --source-vip (winkernel.sourceVip) names an "+
			"address of this node in it", n.name))
	}
	return all
}

// able checks the version of HNS.
func able(open func() (HNS, error), f lb.Family) error {
	h, err := open()
	if err != nil {
		return err
	}
	has, err := h.Features(context.Background())
	switch {
	case err != nil:
		return fmt.Errorf("hns: reading the version of HNS: %w", err)
	case !has.V2:
		return fmt.Errorf("hns: want HNS schema version 2, of Windows Server 2019 or later: %w", plane.ErrUnsupported)
	case f == lb.IPv6 && !has.IPv6DualStack:
		return fmt.Errorf("hns: want an HNS with IPv6 load balancers, of Windows Server 2022 or later: %w",
			plane.ErrUnsupported)
	}
	return nil
}
