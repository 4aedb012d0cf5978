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

// facts are what decides, besides a row, how it is said to HNS.
type facts struct {
	family   lb.Family
	features Features
	network
	node      lb.Node
	wantDSR   bool
	sourceVIP netip.Addr
	// ignoreRanges: rows with source ranges are served to all clients.
	ignoreRanges bool
	// refused are the optional flags of port mappings that this build of Windows does not take.
	refused PortMappingFlags
	// root is the id of the node's own HNS endpoint, and rootAddr its address; "" if there is none.
	root     string
	rootAddr netip.Addr
}

// network is what a plane knows of its HNS network.
type network struct {
	id, name   string
	overlay    bool
	management netip.Addr // the node's own address; not valid if HNS does not tell
	mac        string     // that of the interface with this address
	subnets    []netip.Prefix
	remotes    []remote // the longest prefixes first
}

// remote is where an overlay network leads to the pods of another node.
type remote struct {
	pods netip.Prefix
	node netip.Addr
}

// pick returns the one network of that name that can be served.
func pick(name string, all []Network) (network, error) {
	var fits []Network
	for _, n := range all {
		if served(n.Type) {
			fits = append(fits, n)
		}
	}
	switch {
	case len(all) == 0:
		return network{}, fmt.Errorf("there is no HNS network %q yet: the CNI makes it, or --network-name (winkernel.networkName) or the environment's KUBE_NETWORK names another", name)
	case len(fits) == 0:
		return network{}, fmt.Errorf("the HNS network %q is of type %s: want %s, %s or %s", name, all[0].Type, L2Bridge, L2Tunnel, Overlay)
	case len(fits) > 1:
		ids := make([]string, len(fits))
		for i, n := range fits {
			ids[i] = n.ID
		}
		slices.Sort(ids)
		return network{}, fmt.Errorf("%d HNS networks have the name %q, %s: remove all but one", len(fits), name, strings.Join(ids, " and "))
	}
	return parse(fits[0])
}

func served(t NetworkType) bool {
	return slices.ContainsFunc([]NetworkType{L2Bridge, L2Tunnel, Overlay}, func(o NetworkType) bool { return strings.EqualFold(string(o), string(t)) })
}

// parse reads what matters of a network. The error names all that it cannot read.
func parse(n Network) (network, error) {
	net := network{id: n.ID, name: n.Name, mac: n.HostMAC, overlay: strings.EqualFold(string(n.Type), string(Overlay))}
	var errs []error
	if n.ManagementIP != "" {
		var err error
		if net.management, err = netip.ParseAddr(n.ManagementIP); err != nil {
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
	if r.pods, err = netip.ParsePrefix(s.DestinationPrefix); err != nil {
		return r, err
	}
	r.pods = r.pods.Masked()
	r.node, err = netip.ParseAddr(s.ProviderAddress)
	return r, err
}
