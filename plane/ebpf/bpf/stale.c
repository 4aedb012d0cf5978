//go:build ignore

/* The sockets whose backend is gone. Its object is apart: a kernel without BTF loads the others. */
#include "maps.h"
#include "balance.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common { unsigned int inum; };
struct net { struct ns_common ns; };
typedef struct { struct net *net; } possible_net_t;
struct in6_addr { union { addr_t u6_addr32; } in6_u; };
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct sock { struct sock_common __sk_common; __u16 sk_protocol; };
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; };
#pragma clang attribute pop

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

/* stale is a socket, as sock_diag names it, and what it connected to. IPv4 addresses are mapped, as in the maps. */
struct stale {
	struct peer peer;
	addr_t src;
	addr_t dst;
	__be16 src_port;
	__be16 dst_port;
	__u16 family;
	__u16 proto;
	__u32 netns; /* inode */
	__u32 pad;
};
KEEP(stale)

SEC("iter/bpf_sk_storage_map")
int find_stale(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct peer *p = ctx->value;
	struct stale s = {};
	struct backend b;

	if (!sk || !p || !p->backend || (find_backend(p->set, p->backend, &b) && is_at(p, &b)))
		return 0;
	s.peer = *p;
	s.family = sk->__sk_common.skc_family;
	s.proto = sk->sk_protocol;
	s.netns = sk->__sk_common.skc_net.net->ns.inum;
	s.src_port = bpf_htons(sk->__sk_common.skc_num);
	s.dst_port = sk->__sk_common.skc_dport;
	if (s.family == 2 /* AF_INET */) {
		s.src[2] = s.dst[2] = MAPPED;
		s.src[3] = sk->__sk_common.skc_rcv_saddr;
		s.dst[3] = sk->__sk_common.skc_daddr;
	} else {
		copy(s.src, sk->__sk_common.skc_v6_rcv_saddr.in6_u.u6_addr32);
		copy(s.dst, sk->__sk_common.skc_v6_daddr.in6_u.u6_addr32);
	}
	if (s.dst_port != p->backend_port || !same(s.dst, p->backend_addr))
		return 0; /* it has ended, or is connected elsewhere */
	bpf_seq_write(ctx->meta->seq, &s, sizeof(s));
	return 0;
}

/* Helpers of iterators ask for the GPL; this file may be used under it too. */
char licence[] SEC("license") = "Dual BSD/GPL";
