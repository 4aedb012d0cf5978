// Package failover decides which endpoints this node does not reach. It is pure: a table of
// endpoints, notices and answers go in; due probes and unreachable endpoints come out. The caller
// injects a monotonic time. Package failover/control does the I/O.
//
//	silent       a client's first packet to the endpoint was repeated, or refused by ICMP
//	unreachable  this node's own probe confirms it
//	avoided      the proxy gives the endpoint no new connections for that reason
//
// A notice never decides anything: it starts a probe.
package failover
