// Package unanswered watches for connections of Services that no endpoint answers, and ends their
// wait. It serves all planes with which the kernel translates packets.
//
// The kernel keeps a translated connection in its conntrack table, so each retransmission of a
// client's first packet goes to the same endpoint. A packet whose entry is confirmed, which means
// that an earlier packet has passed all rules, but not answered, is such a retransmission. The
// rules of a table beside the plane's, kube-proxy-failover, send its entry to this process, by
// nfnetlink_log:
//
//	prerouting, output   ct state new,related: jump unanswered
//	  unanswered         retransmitted SYN, translated; ICMP net or host unreachable
//	                     within 2 a second for each endpoint: log
//
// Packets of answered connections meet one comparison, and first packets three. The rate is counted
// by endpoint, so the silent endpoints of one tenant do not hide those of others. Conntrack knows
// the endpoint from the replies that it expects; that serves IPVS too, which translates later.
//
// The table exists while [Watch.Run] runs, and after a crash until [Remove]. Nothing but these
// reports depends on it.
package unanswered
