// Package hns is the data plane for --proxy-mode kernelspace: load balancers of the Host Networking Service of Windows (HNS), in the
// network that the CNI made on this node. All that decides is pure, and is tested on any system with package hnsfake; what
// calls Windows, adapter_windows.go, decides nothing.
//
//	row 10.96.0.10:80/tcp             load balancer 10.96.0.10:80/tcp → 8080
//	  anywhere balance …/cluster   →    endpoint of 10.1.1.11, a pod of this node, made by the CNI
//	                                    endpoint of 10.1.2.14, remote, named "kube-proxy 10.1.2.14", made here
//	                                  and in an overlay network, made here
//	                                    endpoint of 10.96.0.10, remote, by which pods send packets there
//	                                    endpoint of the source VIP, local, without which HNS refuses load balancers
//
// A row that balances for clients anywhere is one load balancer, and no other row is any: without one, packets go on as if
// there were no proxy. A backend is an HNS endpoint. Those of this node's pods are there; for others one is made, which all load balancers share, and
// which goes with the last of them. A packet to a ClusterIP from a pod meets the load balancer in the virtual switch, which rewrites
// its destination to an endpoint's address and, but with DSR, its source to the node's or the source VIP.
//
// # What HNS cannot do
//
// Sources are not told apart, so the route for anywhere decides for all; where it rejects or drops, there is no load balancer. Load
// balancers of policy Local have DSR wherever HNS has it, so that endpoints see the client. A row with source
// ranges is left out rather than open to everybody. There is no SCTP. A port leads to one port of the endpoints. An affinity
// has no timeout of ours. Each is told once ([Plane.Notices]); docs/adr/0043 has the reasons.
//
// # Order
//
// HNS has no transactions, and one load balancer for each address, port and protocol. Endpoints are made before a load balancer that
// needs them; a load balancer gives them up before they go. Other endpoints, the most frequent change, are written in place where HNS can
// (15.5 and later): connections to those that stay live on. Otherwise, and where the port, the affinity or a flag
// changes, the old one is deleted and then the new one is made, so the hole is as long as one call; if HNS refuses the new one, the old one
// comes back.
//
// HNS is listed by Reset and Audit alone. Between them the state in memory counts, and an answer that does not fit it, an object that
// is not there or is there already, asks for an audit. Where the network has gone, or came back with another id, every verb asks for a
// Reset, which fails until the network is there.
//
// # Whose objects
//
// HNS tells of no object who made it (PN-76). So:
//
//   - An endpoint is ours if it is remote, in no container, has one address and the name that we give to endpoints with that
//     address. No other is ever deleted. One of others is used if it has a backend's address.
//   - A load balancer is ours, in a network that this proxy serves, if it has one port mapping, of TCP or UDP, and at most one address,
//     and also: a row or a health check wants its address, port and protocol, which nobody else may have then; or
//     its address is in the service network, of which kube-proxies alone write; or it has endpoints, all of them in this network, and
//     flags and a distribution that we would have written. Another program that writes load balancers in this network must
//     therefore set ILB or several ports or addresses; upstream's proxy, whose place we take, is the only one known.
//   - All others stay. If one has the key of a row, the row fails and names it.
//
// Of ours, what is as it shall be is adopted as it is; what differs is changed; what nobody wants goes.
//
// # Who asks
//
// [Plane.Follow] and [Plane.Differences] list HNS themselves, and share nothing with the verbs but the settings.
package hns
