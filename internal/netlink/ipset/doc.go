// Package ipset is a netlink client of the kernel's ipsets, as the program ipset is. It sends many
// members in one message, many messages in one system call, and returns an error for each refused
// member.
//
//	conn, err := ipset.Open()
//	made, err := conn.Ensure(ctx, ipset.Set{Name: "KUBE-CLUSTER-IP", Type: ipset.HashIPPort, Family: ipset.IPv4})
//	err = conn.Do(ctx, []ipset.Op{{Set: &set, Member: member}}, func(i int, err error) { … })
//	header, err := conn.Members(ctx, "KUBE-CLUSTER-IP", func(m ipset.Member) { … })
//
// Requests follow the kernel's include/uapi/linux/netfilter/ipset/ip_set.h. The kernel sends no
// notifications of changes of ipsets: only a listing shows foreign changes. docs/adr/0030 says why
// no library does this.
package ipset
