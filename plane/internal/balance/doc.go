// Package balance chooses the backends of the clients of the userspace proxy. Its only I/O is the
// clock, and what its callers provide.
//
// A [Balance] has the backend sets of one family. A [Set] gives its backends turns and remembers
// the clients that stay with one of them. It chooses again if a backend could not be reached. A
// [Frontend] has the routes of one service address: it chooses the set by a client's address, where
// the kernel has not done that.
//
// # Affinity
//
// A set has at most 4,096 places, found by a hash of the client's address with a seed of this
// process. A place has the backend of its clients, and the time when that ends (SV-18). All sets
// together have at most [Config.Places]. If these are taken, a client without a place gets its
// backend by its hash alone, until the set changes. So a flood of one Service costs its own clients
// evenness, and takes no place of another Service, as in mode nftables
// (docs/adr/0016-places-for-clients.md).
//
// # Backends that fail
//
// All sets share the health of a backend, by its address, port and protocol: the first failure
// spares the others the wait. A failing backend is tried after all others for a second, and for
// twice as long after each further failure, up to a minute. Then it gets its turns again. One
// success ends its failures, and so does its removal from the last set.
//
// Only a refusal, a timeout or an error of the network before the handshake counts ([Unreachable]).
// Shortages of this node do not count, such as ports or memory: a tenant could cause those. Nothing
// that a client chooses counts: its TTL (package relay reports only attempts that had enough), its
// data, or that it gives up.
package balance
