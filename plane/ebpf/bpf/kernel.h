/* The fields of the kernel's structs that programs read where the kernel has BTF. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common { unsigned int inum; };
struct net { struct ns_common ns; __u64 net_cookie; };
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
struct inet_sock { struct sock sk; };
struct inet_connection_sock { struct inet_sock icsk_inet; };
struct tcp_sock { struct inet_connection_sock inet_conn; };
struct net___5_11 { atomic64_t net_cookie; }; /* until Linux 5.11 */
#pragma clang attribute pop
