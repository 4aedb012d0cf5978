package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/lb"
)

// facts decide, with a frontend, which load balancer it gets.
type facts struct {
	family   lb.Family
	features Features
	network
	node      lb.Node
	wantDSR   bool
	sourceVIP netip.Addr
	// ignoreRanges serves frontends with source ranges to all clients.
	ignoreRanges bool
	// refused are the optional flags of port mappings that this build of Windows refuses.
	refused PortMappingFlags
	// root is the id of the node's own HNS endpoint, or "", and rootAddr its address.
	root     string
	rootAddr netip.Addr
}

func (cfg Config) facts(node lb.Node) facts {
	return facts{family: cfg.Family, node: node, wantDSR: cfg.DSR, sourceVIP: cfg.SourceVIP,
		ignoreRanges: cfg.IgnoreSourceRanges}
}

// network is the HNS network of a plane.
type network struct {
	id, name   string
	overlay    bool
	management netip.Addr // the node's own address; invalid if unknown
	mac        string     // of the interface with that address
	subnets    []netip.Prefix
	remotes    []remote // longest prefixes first
}

// remote are the pods of another node, in an overlay network.
type remote struct {
	pods netip.Prefix
	node netip.Addr
}

// pick returns the only network of that name that can be served.
func pick(name string, all []Network) (network, error) {
	var fits []Network
	for _, n := range all {
		if served(n.Type) {
			fits = append(fits, n)
		}
	}
	switch {
	case len(all) == 0:
		return network{}, fmt.Errorf("no HNS network %q yet: wait for the CNI plugin, or name another by "+
			"--network-name (winkernel.networkName) or KUBE_NETWORK", name)
	case len(fits) == 0:
		return network{}, fmt.Errorf("the HNS network %q is of type %s: want %s, %s or %s", name, all[0].Type, L2Bridge,
			L2Tunnel, Overlay)
	case len(fits) > 1:
		ids := make([]string, len(fits))
		for i, n := range fits {
			ids[i] = n.ID
		}
		slices.Sort(ids)
		return network{}, fmt.Errorf("%d HNS networks have the name %q, %s: remove all but one", len(fits), name,
			strings.Join(ids, " and "))
	}
	return parse(fits[0])
}

func served(t NetworkType) bool {
	return slices.ContainsFunc([]NetworkType{L2Bridge, L2Tunnel, Overlay}, func(o NetworkType) bool {
		return strings.EqualFold(string(o), string(t))
	})
}

// parse reads a network. Its error names all invalid settings.
func parse(n Network) (network, error) {
	net := network{id: n.ID, name: n.Name, mac: n.HostMAC, overlay: strings.EqualFold(string(n.Type), string(Overlay))}
	var errs []error
	if n.ManagementIP != "" {
		var err error
		net.management, err = netip.ParseAddr(n.ManagementIP)
		if err != nil {
			errs = append(errs, fmt.Errorf("ManagementIP: %w", err))
		}
	}
	for _, i := range n.Ipams {
		for _, s := range i.Subnets {
			if p, err := netip.ParsePrefix(s.IPAddressPrefix); err == nil {
				net.subnets = append(net.subnets, p.Masked())
			}
		}
	}
	for _, p := range n.Policies {
		if p.Type != PolicyRemoteSubnetRoute {
			continue
		}
		r, err := remoteOf(p.Settings)
		if err != nil {
			errs = append(errs, fmt.Errorf("policy %s: %w", p.Type, err))
			continue
		}
		net.remotes = append(net.remotes, r)
	}
	slices.SortFunc(net.remotes, byLength)
	if err := errors.Join(errs...); err != nil {
		return network{}, fmt.Errorf("the HNS network %q (%s): %w", n.Name, n.ID, err)
	}
	return net, nil
}

func remoteOf(settings json.RawMessage) (r remote, err error) {
	var s RemoteSubnet
	if err := json.Unmarshal(settings, &s); err != nil {
		return r, err
	}
	r.pods, err = netip.ParsePrefix(s.DestinationPrefix)
	if err != nil {
		return r, err
	}
	r.pods = r.pods.Masked()
	r.node, err = netip.ParseAddr(s.ProviderAddress)
	return r, err
}
