/* The fields of the kernel's structs that programs read where the kernel has BTF. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct list_head { struct list_head *next; };
struct ns_common { unsigned int inum; };
struct net {
	struct ns_common ns;
	__u64 net_cookie;
	struct list_head dev_base_head;
};
typedef struct { struct net *net; } possible_net_t;
typedef struct { __s64 counter; } atomic64_t;
struct in6_addr { union { addr_t u6_addr32; } in6_u; };
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
};
struct socket;
struct sock {
	struct sock_common __sk_common;
	__u8 sk_kern_sock : 1;
	__u16 sk_protocol;
	struct socket *sk_socket;
};
struct in_ifaddr { struct in_ifaddr *ifa_next; __be32 ifa_local; };
struct in_device { struct in_ifaddr *ifa_list; };
struct inet6_ifaddr { struct in6_addr addr; struct list_head if_list; };
struct inet6_dev { struct list_head addr_list; };
struct rtnl_link_ops { const char *kind; };
struct net_device {
	struct list_head dev_list;
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;
	struct in_device *ip_ptr;
	struct inet6_dev *ip6_ptr;
};
struct net_device___6_12 { __u8 priv[0]; }; /* from Linux 6.12 on */
struct net___5_11 { atomic64_t net_cookie; }; /* until Linux 5.11 */
#pragma clang attribute pop
