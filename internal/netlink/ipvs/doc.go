// Package ipvs is a client of IPVS, the load balancer of the Linux kernel, over its generic netlink
// family (include/uapi/linux/ip_vs.h, net/netfilter/ipvs/ip_vs_ctl.c).
//
//	conn, err := ipvs.Open()
//	err = conn.Do(ctx, []ipvs.Op{
//		{Verb: ipvs.NewService, Service: web},
//		{Verb: ipvs.NewDestination, Service: web, Destination: backend},
//	}, func(i int, err error) { … }) // called for each that failed
//
// Each operation is one message. One system call sends many; the kernel carries out one after the
// other, and answers each. It has no transactions: a failed operation does not stop the others.
//
// The kernel refuses the following with these errors (package ipvsfake checks them against real
// kernels):
//
//	unix.EEXIST        a new service or destination that already exists
//	unix.ESRCH         a missing service, also in an operation on a destination of it
//	unix.ENOENT        a missing destination; in a new or changed service: a missing scheduler
//	unix.EINVAL        an IPv6 netmask outside 1 to 128; an address that no packet can be sent to; a
//	                   destination of the other family that is not tunnelled
//	unix.ERANGE        a weight below 0; a lower threshold above the upper one
//	unix.EAFNOSUPPORT  IPv6 on a kernel without it
//	unix.EPERM         no CAP_NET_ADMIN in the network namespace
//
// A change of a service's scheduler blocks the kernel's IPVS, and all that wait for it, for about
// 10 ms: it waits until no packet is with the old one. A scheduler whose module must be loaded
// takes longer, and lblc and lblcr may take for ever (docs/adr/0046).
//
// # Lists
//
// A list comes in parts, by position, and the kernel does not report changes between two of them.
// If another program removes an entry meanwhile, the list may lack another one; if it adds one, the
// list may have another twice. The destinations of a missing service are an empty list. IPVS sends
// no notifications of changes.
package ipvs
