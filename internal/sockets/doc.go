// Package sockets notices ports of this node that a Service takes: NodePorts on which a program already listens (PN-60), and
// external and load-balancer addresses that are the node's own, on a port where a program listens or that is another
// Service's NodePort. The Service takes that traffic, and nothing else says so.
//
//	engine ──applied rows──▶ NodePorts, addresses ─┐
//	                                               ├──▶ in the way of each other? ──once──▶ Collides
//	kernel ──sock_diag──▶ sockets ─────────────────┘
//
// A look costs one dump of the listening sockets for each protocol that has ports in question, connections are not
// among them; with a single port in question the kernel answers for that port alone. Rows at addresses that the node does
// not have are in no question. There is a look when rows came, and every few minutes, because programs start later, too, and
// addresses come.
//
// In the way of a NodePort are TCP and SCTP sockets that listen and UDP sockets that have no peer, on an
// address that answers NodePorts or on all addresses; in the way of a row at an address are those there or on all addresses; an IPv6 socket on all addresses also takes IPv4 unless
// it was told not to. Sockets of this process are in no NodePort's way: it may serve the port itself. A row of kind
// HealthCheck is such a port and no NodePort of a Service.
package sockets
