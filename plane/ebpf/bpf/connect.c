//go:build ignore

/* connect() to a frontend: the socket connects to a backend. */

__inline int to_backend(struct bpf_sock_addr *ctx, const struct front *to, struct backend *b)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct frontend fe;
	struct peer *p;
	__u32 set;

	if (!cfg || !ctx->sk)
		return 0;
	p = bpf_sk_storage_get(&connected, ctx->sk, 0, 0);
	if (p)
		p->backend = 0; /* of an earlier connect() */
	if (!cfg->on)
		return 0;
	set = lookup(ctx, cfg, to, &fe);
	if (!set || !choose(&fe, set, bpf_get_netns_cookie(ctx), b))
		return 0;
	if (!p)
		p = bpf_sk_storage_get(&connected, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!p)
		return 0;
	set_peer(p, to, b);
	count(cfg, set);
	return 1;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct front to = {.proto = ctx->protocol};
	struct backend b;

	read4(ctx, &to);
	if (to_backend(ctx, &to, &b))
		write4(ctx, b.addr, b.port);
	return PASS;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct front to = {.proto = ctx->protocol};
	struct backend b;

	if (read6(ctx, &to) && to_backend(ctx, &to, &b))
		write6(ctx, b.addr, b.port);
	return PASS;
}
