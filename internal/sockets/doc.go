// Package sockets reports ports of this node that a Service takes over: NodePorts on which a
// program already listens (PN-60), and external and load-balancer addresses that are the node's
// own, on a port of a program or of another Service's NodePort.
//
//	engine ──applied──▶ NodePorts, addresses ──────┐
//	                                               ├──▶ collision? ──once──▶ Collides
//	kernel ──sock_diag──▶ sockets ─────────────────┘
//
// A check costs one dump of the listening sockets for each protocol with ports in question, or of
// one port if it is the only one. Frontends at addresses of other nodes are ignored. A check runs
// after new frontends, and every few minutes, because programs and addresses are added later too.
//
// A NodePort collides with listening TCP and SCTP sockets, and with UDP sockets without a peer, at
// an address that answers NodePorts or at all addresses; a frontend at an address collides with
// those there or at all addresses. An IPv6 socket at all addresses also takes IPv4, unless it has
// IPV6_V6ONLY. Sockets of this process do not collide with NodePorts. A frontend of kind
// HealthCheck is no NodePort of a Service.
package sockets
