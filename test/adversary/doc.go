// Package adversary writes the Services and EndpointSlices of a hostile tenant with full rights in
// one namespace: each field at its limits, addresses of every class, those of other tenants and of
// the node, unused ones, ports in conflict, lists as long as the API accepts. A seed determines
// everything.
//
// The API server prevents some of this: it gives each Service a cluster IP and NodePorts of its
// own, and refuses the worst addresses. This package relies only on its cluster IPs. Everything
// else may get past an older API server, a removed webhook, or a controller that writes status.
//
// The tests of this package run tenants from events to a plane, and query the oracle about packets.
// In test/planetest tenants meet the kernel.
package adversary
