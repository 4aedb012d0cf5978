package hnsfake

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/plane/hns"
)

// AddNetwork creates a network, as a CNI plugin does, and returns its ID.
func (f *Fake) AddNetwork(n hns.Network) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.ID = f.id()
	f.networks[n.ID] = n
	return n.ID
}

// SetNetwork changes a network, as HNS or a CNI plugin does.
func (f *Fake) SetNetwork(id string, change func(*hns.Network)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.networks[id]
	change(&n)
	n.ID = id
	f.networks[id] = n
}

// RemoveNetwork removes a network with its endpoints and load balancers, as a restart of the node
// does.
func (f *Fake) RemoveNetwork(id string) {
	id = strings.ToUpper(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	for lid, l := range f.balancers {
		if f.endpoints[l.HostComputeEndpoints[0]].HostComputeNetwork == id {
			f.dropBalancer(lid)
		}
	}
	for eid, e := range f.endpoints {
		if e.HostComputeNetwork == id {
			f.dropEndpoint(eid)
		}
	}
	delete(f.networks, id)
}

// AddPod creates a container's endpoint, as a CNI plugin does, and returns its ID. It is another
// program's object.
func (f *Fake) AddPod(network, name string, addrs ...netip.Addr) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := hns.Endpoint{Name: name, HostComputeNetwork: network, SchemaVersion: hns.Version2}
	for _, a := range addrs {
		e.IPConfigurations = append(e.IPConfigurations, hns.IPConfig{IPAddress: a.String(), PrefixLength: 24})
	}
	made, err := f.createEndpoint(e)
	if err != nil {
		panic(fmt.Sprintf("hnsfake: pod %s: %v", name, err))
	}
	f.endpoints[made.ID].HostComputeNamespace = f.id()
	f.foreign[made.ID] = true
	return made.ID
}

// Has reports whether an endpoint of the network has the address.
func (f *Fake) Has(network string, a netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.at[place{network, a}]) > 0
}

// HasNetwork reports whether the network exists.
func (f *Fake) HasNetwork(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.networks[id].ID != ""
}

// RemovePod removes a container's endpoint though it is used, as a CNI plugin does. Load balancers
// lose the endpoint; those without another are deleted.
func (f *Fake) RemovePod(id string) {
	id = strings.ToUpper(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endpoints[id] == nil {
		panic("hnsfake: no endpoint " + id)
	}
	for lid, l := range f.balancers {
		if !slices.Contains(l.HostComputeEndpoints, id) {
			continue
		}
		if len(l.HostComputeEndpoints) == 1 {
			f.dropBalancer(lid)
			continue
		}
		l.HostComputeEndpoints = slices.DeleteFunc(l.HostComputeEndpoints, func(e string) bool { return e == id })
		f.endpoints[id].uses--
	}
	f.dropEndpoint(id)
}

// Foreign declares an object to be another program's; [Fake.Touched] reports changes to it.
func (f *Fake) Foreign(id string) {
	id = strings.ToUpper(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign[id] = true
}

// Touched returns the calls that changed other programs' objects.
func (f *Fake) Touched() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.touched)
}

// SetServices sets the addresses that an overlay network encapsulates, as the CNI plugin's SDNRoute
// policies do for the service network.
func (f *Fake) SetServices(prefixes ...netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services = prefixes
}

// Reserve takes a port of the node's own addresses, as a listening program does.
func (f *Fake) Reserve(k Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserved[k] = true
}

// Damage removes a load balancer, or a used endpoint with its load balancers, as an administrator
// may. It reports whether the object existed.
func (f *Fake) Damage(id string) bool {
	id = strings.ToUpper(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.balancers[id] != nil {
		f.dropBalancer(id)
		return true
	}
	if f.endpoints[id] == nil {
		return false
	}
	for lid, l := range f.balancers {
		if slices.Contains(l.HostComputeEndpoints, id) {
			f.dropBalancer(lid)
		}
	}
	f.dropEndpoint(id)
	return true
}
