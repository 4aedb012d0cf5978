//go:build ignore

/* What the storage of sockets has: those whose backend is gone, and how many there are. Its object is apart: a
 * kernel without BTF loads the others. */
#include "maps.h"
#include "kernel.h"
#include "balance.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; };
#pragma clang attribute pop

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

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
	__u32 state; /* BPF_TCP_* */
	__u64 cookie;
};
KEEP(stale)

/* list writes a socket that is connected to its peer still. */
__inline void list(struct bpf_iter__bpf_sk_storage_map *ctx, struct sock *sk, struct peer *p)
{
	struct stale s = {};

	s.peer = *p;
	s.state = sk->__sk_common.skc_state;
	s.family = sk->__sk_common.skc_family;
	s.proto = sk->sk_protocol;
	s.netns = sk->__sk_common.skc_net.net->ns.inum;
	s.cookie = sk->__sk_common.skc_cookie.counter;
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
	if (s.dst_port == p->backend_port && same(s.dst, p->backend_addr)) /* else it is connected elsewhere */
		bpf_seq_write(ctx->meta->seq, &s, sizeof(s));
}

SEC("iter/bpf_sk_storage_map")
int find_stale(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct peer *p = ctx->value;
	struct backend b;

	if (sk && p && p->backend && !(find_backend(p->set, p->backend, &b) && is_at(p, &b)))
		list(ctx, sk, p);
	return 0;
}

/* find_tcp writes the TCP sockets, whatever their backend. */
SEC("iter/bpf_sk_storage_map")
int find_tcp(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct peer *p = ctx->value;

	if (sk && p && p->backend && sk->sk_protocol == IPPROTO_TCP)
		list(ctx, sk, p);
	return 0;
}

/* find_kept writes the cookie of the network namespace of each element. A closed socket has its own for some
 * time: one of TCP until its peer has all data, and any until no processor uses it. */
SEC("iter/bpf_sk_storage_map")
int find_kept(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct net *net;
	__u64 netns;

	if (!sk || !ctx->value)
		return 0;
	if (!sk->sk_socket && (sk->sk_protocol != IPPROTO_TCP || sk->__sk_common.skc_state == BPF_TCP_CLOSE))
		return 0;
	net = sk->__sk_common.skc_net.net;
	if (bpf_core_field_exists(net->net_cookie))
		netns = net->net_cookie;
	else
		netns = ((struct net___5_11 *)net)->net_cookie.counter;
	bpf_seq_write(ctx->meta->seq, &netns, sizeof(netns));
	return 0;
}

/* The cookies of the sockets that shall end, each once: a program may connect its socket again at once, and the walk
 * meets it again then. */
MAP(ending, HASH, BPF_F_NO_PREALLOC, 4096, __u64, __u32);

/* From Linux 6.5 on programs end sockets. */
extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

__inline int end(struct bpf_iter_meta *meta, struct sock_common *sk)
{
	__u64 cookie;

	if (!sk)
		return 0;
	cookie = sk->skc_cookie.counter;
	if (!bpf_map_delete_elem(&ending, &cookie) && !bpf_sock_destroy(sk))
		bpf_seq_write(meta->seq, &cookie, sizeof(cookie));
	return 0;
}

SEC("iter/udp")
int end_udp(struct bpf_iter__udp *ctx)
{
	return end(ctx->meta, (struct sock_common *)ctx->udp_sk);
}

SEC("iter/tcp")
int end_tcp(struct bpf_iter__tcp *ctx)
{
	return end(ctx->meta, ctx->sk_common);
}

/* Helpers of iterators ask for the GPL; this file may be used under it too. */
char licence[] SEC("license") = "Dual BSD/GPL";
