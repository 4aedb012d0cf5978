// Package conn asks the kernel by netlink. It is the one client of everything here that does: nftables, conntrack, the
// probes of package kernel, the list of sockets.
//
//	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER})
//	err = conn.Do(ctx, request, func(m nlconn.Message) error { … })  // one request, its answers
//	err = conn.Batch(ctx, buffers, last)                             // one transaction of nftables
//	err = conn.Each(ctx, messages, func(i int, err error) { … })     // many requests at once, what became of each
//
// No request waits for ever: each part of an answer must come within [Patience], and a context that ends ends the wait at
// once. After an answer that was not read to its end, the socket is replaced before the next request, in the same network
// namespace: the kernel refuses a second dump while it believes that the first is being read. What comes late is told by its
// sequence number and left out.
//
// Who imports it calls it nlconn: conn is what variables are called.
//
// The socket itself is mdlayher/netlink's; requests and answers are not, for reasons in docs/adr/0030.
package netlink
