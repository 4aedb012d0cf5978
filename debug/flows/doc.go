// Package flows reads connections from the conntrack table of this network namespace: those of a client to an address
// ([Find]), and how many are opened a second to each row ([Top]). All modes have them there, by the address and port that
// the client asked for. A packet that is rejected or dropped has none.
//
// Find is one request where the client's port is known. Else the kernel filters (CTA_FILTER, from 5.8 on; for IPv6 it
// compares addresses the wrong way round, so only by protocol and port), or sends all, of which a million are read.
//
// Top hears of new entries by multicast, over a socket for each who asks, and counts them to rows.
// Connections to other addresses add to one number, so tenants take no memory. One costs about 5 µs of CPU. Lost
// messages are known by the kernel's counter (SO_MEMINFO); numbers are then lower bounds. There is no socket filter: the
// kernel has made the message before.
package flows
