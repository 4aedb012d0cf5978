// Package hns is the data plane of --proxy-mode kernelspace: load balancers of the Windows Host
// Networking Service (HNS), in the network that the CNI plugin created on this node. All decisions
// are pure and tested on any system with package hnsfake; adapter_windows.go only calls Windows.
//
//	frontend 10.96.0.10:80/tcp        load balancer 10.96.0.10:80/tcp → 8080
//	  anywhere balance …/cluster   →    endpoint of 10.1.1.11, a pod of this node, from the CNI plugin
//	                                    endpoint of 10.1.2.14, remote, named "kube-proxy 10.1.2.14"
//	                                  and in an overlay network
//	                                    endpoint of 10.96.0.10, remote: pods send packets there through it
//	                                    endpoint of the source VIP, local: HNS requires it
//
// A frontend that balances for clients anywhere is one load balancer. Other frontends have none;
// their packets follow the routes. Backends are HNS endpoints. The CNI plugin creates those of this
// node's pods; the plane creates remote endpoints for the others, shares them between load
// balancers and deletes them with the last one. The virtual switch rewrites a packet's destination
// to an endpoint and, without DSR, its source to the node's address or the source VIP.
//
// # Limits of HNS
//
// HNS does not distinguish sources, so the route for anywhere decides for all. If that route
// rejects or drops, there is no load balancer. Load balancers of policy Local use DSR where HNS has
// it, so that endpoints see the client. Frontends with source ranges are left out rather than
// opened to all. HNS has no SCTP, one target port for each port, and its own affinity timeout.
// [Plane.Notices] reports each limit once; docs/adr/0043 gives the reasons.
//
// # Order
//
// HNS has no transactions, and allows one load balancer for an address, port and protocol.
// Endpoints are created before load balancers and deleted after them. Changed endpoints, the most
// frequent change, are modified in place where HNS can (15.5): connections to the remaining
// endpoints survive. Otherwise the old load balancer is deleted and a new one created, which leaves
// a gap of one call. If HNS refuses the new one, the old one is restored.
//
// Only Reset and Audit list HNS. Between them the state in memory is authoritative; an answer that
// contradicts it requests an audit. If the network is gone or has another id, every verb requests a
// Reset, which fails until the network exists.
//
// # Ownership
//
// HNS records no owner (PN-76). Therefore:
//
//   - An endpoint is ours if it is remote, belongs to no container, and has one address and our
//     name for that address. Only these are deleted. Others' endpoints are used if they have a
//     backend's address.
//   - A load balancer is ours if it has one TCP or UDP port mapping, at most one address, and
//     either a key that a frontend or health check needs, or an address of the service network,
//     or endpoints that are all in this network with flags and a distribution of ours. Other
//     programs in this network must set ILB or several ports or addresses; upstream's proxy,
//     which this one replaces, is the only one known.
//   - All others stay. A frontend with the key of one of them fails and names it.
//
// A load balancer of ours is adopted if it matches, changed if it differs, and deleted if nothing
// needs it.
//
// # Inspection
//
// [Plane.TracePacket] and [Plane.Differences] list HNS themselves and share only the settings with
// the verbs.
package hns
