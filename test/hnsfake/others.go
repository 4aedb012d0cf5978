package hnsfake

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kube-proxy/plane/hns"
)

// AddNetwork makes a network, as a CNI plugin does, and returns its ID.
func (f *Fake) AddNetwork(n hns.Network) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	n.ID = f.id()
	f.networks[n.ID] = n
	return n.ID
}

// SetNetwork changes a network, as HNS does when it has its ManagementIP, or a CNI plugin that adds a subnet.
func (f *Fake) SetNetwork(id string, change func(*hns.Network)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.networks[id]
	change(&n)
	n.ID = id
	f.networks[id] = n
}

// RemoveNetwork removes a network with all its endpoints, and the load balancers that send to one of them, as the restart of a node
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

// AddPod makes the endpoint of a container on this node, as a CNI plugin does, and returns its ID. It is an object of others.
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

// RemovePod removes the endpoint of a container though load balancers send to it, which is what a CNI plugin can do whose container is
// gone: they go on without it, and one that sent to nobody else goes.
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

// Foreign declares an object, by its ID, to be of others: [Fake.Touched] tells what becomes of it.
func (f *Fake) Foreign(id string) {
	id = strings.ToUpper(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign[id] = true
}

// Touched returns the calls that changed objects of others.
func (f *Fake) Touched() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.touched)
}

// SetServices says which addresses pods send through an overlay network, as the CNI's SDNRoute policies have it for the service network:
// HNS must know where they are.
func (f *Fake) SetServices(prefixes ...netip.Prefix) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services = prefixes
}

// Reserve takes a port of the node's own addresses, as a program that listens does.
func (f *Fake) Reserve(k Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reserved[k] = true
}

// Damage removes an object though it is used, as somebody with the rights of an administrator may: a load balancer, or an endpoint with
// the load balancers that send to it. It reports whether there was one of that ID.
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
