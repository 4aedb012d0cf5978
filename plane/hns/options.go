package hns

import (
	"net/netip"

	"kube-proxy/config/option"
)

// Options are the block winkernel and our own settings beside it (CF-31, CF-32); the help of their
// flags describes them.
type Options struct {
	Winkernel struct {
		NetworkName           string `json:"networkName"`
		SourceVip             string `json:"sourceVip"`
		EnableDSR             bool   `json:"enableDSR"`
		RootHnsEndpointName   string `json:"rootHnsEndpointName"`
		ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
	} `json:"winkernel"`
	WindowsIgnoreSourceRanges bool `json:"windowsIgnoreSourceRanges"`
}

// options returns the mode's section of the configuration.
func options() option.Section {
	v := &Options{}
	return option.Section{Title: "Windows", Order: 70, Values: v, Check: v.check, Fields: []option.Field{
		{Path: "winkernel.networkName", Flag: "network-name", Row: "CF-31", Restart: option.AtStart,
			Help: "`name` of the HNS network"},
		{Path: "winkernel.sourceVip", Flag: "source-vip", Row: "CF-31", Restart: option.AtStart,
			Help: "`IP` that replaces the client's address in an overlay network"},
		{Path: "winkernel.enableDSR", Flag: "enable-dsr", Row: "CF-31", Restart: option.AtStart,
			Help: "backends answer clients directly"},
		{Path: "winkernel.rootHnsEndpointName", Flag: "root-hnsendpoint-name", Row: "CF-32", Restart: option.AtStart,
			Help: "`name` of the node's own HNS endpoint; default cbr0"},
		{Path: "winkernel.forwardHealthCheckVip", Flag: "forward-healthcheck-vip", Row: "CF-32",
			Restart: option.AtStart,
			Help:    "forward health checks at load balancers' addresses to the node's own HNS endpoint"},
		{Path: "windowsIgnoreSourceRanges", Flag: "windows-ignore-source-ranges", Row: "EXT", Restart: option.AtStart,
			Help: "serve load-balancer addresses of Services with loadBalancerSourceRanges to all clients, for " +
				"clouds whose load balancers enforce the ranges themselves; if false, this node does not serve " +
				"those addresses, because Windows cannot enforce ranges"},
	}}
}

func (o *Options) check(r *option.Report) {
	if s := o.Winkernel.SourceVip; s != "" {
		if _, err := option.ParseAddr(s); err != nil {
			r.Wrong("winkernel.sourceVip", s, "want an IP address")
		}
	}
}

// sourceVIP is invalid if not configured.
func (o *Options) sourceVIP() netip.Addr {
	a, err := option.ParseAddr(o.Winkernel.SourceVip)
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// optionsOf returns the mode's values.
func optionsOf(all option.Blocks) *Options { return option.Of(all, &Options{}) }

// namedAddresses must be of a served family.
func namedAddresses(all option.Blocks) map[string]netip.Addr {
	return map[string]netip.Addr{"winkernel.sourceVip": optionsOf(all).sourceVIP()}
}
