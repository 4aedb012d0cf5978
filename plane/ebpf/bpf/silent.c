//go:build ignore

/* First packets of connected sockets that nothing answers. Its object is apart, and attached only while the
 * process wants to know. */
#include "maps.h"

/* silent is a socket's first packet that is sent again. */
struct silent {
	addr_t addr; /* as the program has it */
	addr_t backend_addr;
	__be16 port;
	__be16 backend_port;
	__u32 pad;
};
KEEP(silent)

/* endpoint is what the rate of reports is of. */
struct endpoint {
	addr_t addr;
	__be16 port;
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} silences SEC(".maps");

/* When an endpoint was reported last, in ns. Each has its own rate, so those of one tenant do not hide others'. */
#define PAUSE 200000000ULL
MAP(reported, LRU_HASH, 0, 65536, struct endpoint, __u64);

static __always_inline void report(const struct peer *p)
{
	struct endpoint at = {};
	struct silent *s;
	__u64 now = bpf_ktime_get_ns(), *last;

	__builtin_memcpy(at.addr, p->backend_addr, sizeof(addr_t));
	at.port = p->backend_port;
	last = bpf_map_lookup_elem(&reported, &at);
	if (last && now - *last < PAUSE)
		return;
	s = bpf_ringbuf_reserve(&silences, sizeof(*s), 0);
	if (!s)
		return;
	__builtin_memcpy(s->addr, p->addr, sizeof(addr_t));
	__builtin_memcpy(s->backend_addr, p->backend_addr, sizeof(addr_t));
	s->port = p->port;
	s->backend_port = p->backend_port;
	s->pad = 0;
	bpf_ringbuf_submit(s, 0);
	bpf_map_update_elem(&reported, &at, &now, BPF_ANY);
}

SEC("sockops")
int retransmits(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk;
	struct peer *p;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB && ctx->op != BPF_SOCK_OPS_RTO_CB)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_RTO_CB && ctx->state != BPF_TCP_SYN_SENT)
		return 1;
	sk = ctx->sk;
	if (!sk)
		return 1;
	p = bpf_sk_storage_get(&connected, sk, 0, 0);
	if (!p || !p->backend)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_RTO_CB)
		report(p);
	else
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTO_CB_FLAG);
	return 1;
}

char licence[] SEC("license") = "Apache-2.0"; /* no helper asks for the GPL */
