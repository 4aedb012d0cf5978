// Package ipvs speaks with IPVS, the load balancer of the Linux kernel, by its family of generic netlink
// (include/uapi/linux/ip_vs.h, net/netfilter/ipvs/ip_vs_ctl.c).
//
//	conn, err := ipvs.Open()
//	err = conn.Do(ctx, []ipvs.Op{
//		{Verb: ipvs.NewService, Service: web},
//		{Verb: ipvs.NewDestination, Service: web, Destination: backend},
//	}, func(i int, err error) { … }) // called of each that failed
//
// Each operation is one message. Many go in one system call; the kernel carries out one after the other, and answers each. There
// are no transactions: an operation that fails keeps no other from being done.
//
// What the kernel says no to, by what (checked by package ipvsfake against real kernels):
//
//	unix.EEXIST        a new service or destination that is there already
//	unix.ESRCH         a service that is not there, also of an operation on a destination of it
//	unix.ENOENT        a destination that is not there; of a new or changed service: the kernel has no such scheduler
//	unix.EINVAL        a netmask of IPv6 outside 1 to 128; an address that no packet can be sent to; a
//	                   destination of the other family that is not tunnelled
//	unix.ERANGE        a weight below 0; a lower threshold above the upper one
//	unix.EAFNOSUPPORT  IPv6 where the kernel has none
//	unix.EPERM         without CAP_NET_ADMIN in the network namespace
//
// A service that gets another scheduler keeps the kernel, and whoever waits for it, for some 10 ms: it waits until no packet is with
// the old one. One whose scheduler is a module that must be loaded takes longer, and lblc and lblcr may take for ever (docs/adr/0046).
//
// # Lists
//
// A list comes in parts, by position, and the kernel does not say that something changed between two of them: if somebody else
// removed an entry meanwhile, another one may be missing from the list; if somebody added one, another may be there twice. The
// destinations of a service that is not there are an empty list. Nobody is told of changes: IPVS has no notifications.
package ipvs
