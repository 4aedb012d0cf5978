// Package adversary writes Services and EndpointSlices as a tenant could who has full rights in one namespace and means
// harm: each field at its limits, addresses of every class, those of other tenants, of the node and of nobody, contested
// ports, lists as long as the API takes them. All follows from a seed.
//
// The API server stands between a tenant and us and keeps some of this away: it gives each Service a cluster IP and
// NodePorts of its own, and refuses the worst addresses. Only the cluster IPs are taken for granted here. Everything
// else may get past it: by an older API server, by a webhook that is no more, by a controller that writes status.
//
// The tests of this package let tenants loose on the whole way from an event to a plane, and ask the oracle about
// packets. In test/planetest they meet the kernel.
package adversary
