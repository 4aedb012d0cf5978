// Package balance says which backend a client of the userspace proxy is led to. It has no I/O but the clock and what it is given.
//
// A [Balance] holds the backend sets of one family. Each [Set] gives its backends turns, remembers who is to stay with which of
// them, and is asked again where a backend could not be reached. A [Row] has the routes of one service address: it tells
// by a client's address which set is for it, where nothing in the kernel has told that before.
//
// # Affinity
//
// A set has at most 4,096 places, found by a hash of the client's address with a seed of this process; a place has the backend that its
// clients are led to, and the time when that ends (SV-18). All sets together have at most [Config.Places]. Where they are
// taken, a client without a place is led by its hash alone: it stays with its backend until the set changes. So a flood of
// one Service costs its own clients evenness, and takes no place from another's, as in mode nftables
// (docs/adr/0016-places-for-clients.md).
//
// # Backends that fail
//
// That a backend cannot be reached is known of its address, port and protocol, to all sets that have it: who finds out first
// spares the others the wait. Such a backend is tried after all others for a second, and for twice as long each time that it
// fails again, up to a minute. When that is over, it has its turns again. One success, or that no set has the backend any more,
// ends it.
//
// Only a refusal, silence or an error of the network before the handshake counts ([Unreachable]). What this node lacks does not,
// such as ports or memory: a tenant could use those up. Nothing that a client chooses counts: its TTL (package relay reports only
// attempts that had enough), its data, or that it gives up.
package balance
