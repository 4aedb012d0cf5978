// Package ipvsfake is the family IPVS of generic netlink in memory, for tests on kernels without ip_vs and for what no real
// kernel does when asked: refuse a chosen message, lose an answer, let somebody else change something between two messages,
// have connections.
//
//	k := ipvsfake.New(ipvsfake.Config{})
//	conn, err := ipvs.New(ctx, k.Connect())
//	k.Before = func(r ipvsfake.Request) error { … }            // EPERM, ErrLost, somebody else's change
//	k.SetConns(service, destination, ipvsfake.Conns{Active: 3})
//
// It reads the bytes of messages and writes those of answers, by the rules of net/netfilter/ipvs/ip_vs_ctl.c. That it does is not a
// matter of opinion: TestFakeIsLikeTheKernel asks it and a real kernel for the same random operations, and compares what becomes of
// each, and the lists after it (docs/adr/0046). Messages that are malformed it refuses, without the kernel's leniency: our encoder
// writes none. What it does not have: packets, so that nothing but SetConns makes connections; the sync daemon; network namespaces;
// time; lists in parts.
package ipvsfake
