// Package netlink sends requests to the kernel by netlink. It is the only netlink client of the
// product, for nftables, conntrack, ipsets, IPVS, routes and sockets.
//
//	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_NETFILTER})
//	err = conn.Do(ctx, request, func(m netlink.Message) error { … })  // one request, its answers
//	err = conn.Batch(ctx, buffers, last)                              // one transaction of nftables
//	err = conn.Each(ctx, messages, func(i int, err error) { … })      // many requests, their outcomes
//
// Every wait has a timeout: each part of an answer must arrive within [Timeout], and the end of a
// context ends the wait. After an answer that was not read to its end, the client replaces the
// socket before the next request, in the same network namespace. The kernel refuses a second dump
// while it considers the first unread. The client recognises late answers by their sequence
// numbers, and ignores them.
//
// The socket is mdlayher/netlink's; the code for requests and answers is our own, for reasons in
// docs/adr/0030.
package netlink
