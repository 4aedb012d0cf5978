// Package hooks says what the packet filter of this node does with one packet at one hook: the
// base chains of all programs, of nftables and of both kinds of iptables, in the order of the
// kernel.
//
// A [Snapshot] reads chains when a packet first meets them, over sockets of its own, and keeps
// them. A rule that cannot be evaluated is followed both ways. It is in [Way.NotEvaluated] if the
// way on which it matches ends otherwise.
package hooks
