// Package sockets notices NodePorts on which a program of this node already listens (PN-60): the Service
// takes the program's traffic, and nothing else says so.
//
//	engine ──applied rows──▶ NodePorts by family ─┐
//	                                              ├──▶ in the way of each other? ──once──▶ Collides
//	kernel ──sock_diag or /proc/net──▶ sockets ───┘
//
// A look costs one dump of the listening sockets for each protocol that has NodePorts, connections are not
// among them; with a single port in question the kernel answers for that port alone. There is a look when
// NodePorts came, and every few minutes, because programs start later, too.
//
// In the way of a NodePort are TCP and SCTP sockets that listen and UDP sockets that have no peer, on an
// address that answers NodePorts or on all addresses; an IPv6 socket on all addresses also takes IPv4 unless
// it was told not to. Sockets of this process are left out: it may serve the port itself. A row of kind
// HealthCheck is such a port and no NodePort of a Service.
package sockets
