// Package ipset speaks with the kernel's ipsets by netlink, as the program ipset does: many members in one message, many messages in
// one system call, and for each member that is refused an error of its own.
//
//	conn, err := ipset.Open()
//	made, err := conn.Ensure(ctx, ipset.Set{Name: "KUBE-CLUSTER-IP", Type: ipset.HashIPPort, Family: ipset.IPv4})
//	err = conn.Do(ctx, []ipset.Op{{Set: &set, Member: member}}, func(i int, err error) { … })
//	header, err := conn.Members(ctx, "KUBE-CLUSTER-IP", func(m ipset.Member) { … })
//
// Requests are as in the kernel's include/uapi/linux/netfilter/ipset/ip_set.h. The kernel tells nobody of changes of ipsets: what
// others did only a listing shows. docs/adr/0030 says why no library does this.
package ipset
