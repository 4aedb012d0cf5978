// Package flows reads connections from the conntrack table of this network namespace: those of a
// client to an address ([Find]), and the rate of new connections to each frontend ([Top]). In all
// modes they are listed by the address and port that the client connected to. Rejected and dropped
// packets have no connection.
//
// Find is one request if the client's port is known. Otherwise the kernel filters (CTA_FILTER,
// since 5.8; for IPv6 it compares addresses the wrong way round, so only by protocol and port) or
// sends all, and Find reads at most a million.
//
// Top receives new entries by multicast, on one socket per query, and counts them by frontend.
// Connections to other addresses share one counter, so tenants take no memory. An entry costs about
// 5 µs of CPU. The kernel's counter (SO_MEMINFO) shows lost messages; the numbers are then lower
// bounds. A socket filter would not help: the kernel has built the message before it runs.
package flows
