// Package ipvsfake is the generic netlink family IPVS in memory, for tests on kernels without ip_vs
// and for behaviour that no real kernel shows on demand: refuse a chosen message, lose an answer,
// let another program change something between two messages, have connections.
//
//	k := ipvsfake.New(ipvsfake.Config{})
//	conn, err := ipvs.New(ctx, k.Connect())
//	k.Before = func(r ipvsfake.Request) error { … }            // EPERM, ErrLost, a change by others
//	k.SetConns(service, destination, ipvsfake.Conns{Active: 3})
//
// It reads the bytes of messages and writes those of answers, by the rules of
// net/netfilter/ipvs/ip_vs_ctl.c. TestFakeIsLikeTheKernel proves that: it runs the same random
// operations on the fake and on a real kernel, and compares the results, and the lists afterwards
// (docs/adr/0046). It rejects malformed messages, without the kernel's leniency: our encoder writes
// none. It does not have: packets, so that only SetConns creates connections; the sync daemon;
// network namespaces; time; lists in parts.
package ipvsfake
