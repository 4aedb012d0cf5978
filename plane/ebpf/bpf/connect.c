//go:build ignore

/* connect() to a frontend: the socket connects to a backend, or fails where the frontend rejects. */

__inline int to_backend(struct bpf_sock_addr *ctx, struct front *to)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct frontend fe;
	struct backend b;
	struct peer *p;
	__u32 set;

	if (!cfg || !ctx->sk)
		return 0;
	p = bpf_sk_storage_get(&connected, ctx->sk, 0, 0);
	if (p)
		p->backend = 0; /* of an earlier connect() */
	if (!balances(cfg))
		return 0;
	set = lookup(ctx, cfg, to, &fe);
	if (set == REFUSED)
		return -1;
	if (!set || !choose(&fe, set, bpf_get_netns_cookie(ctx), &b))
		return 0;
	if (!p)
		p = keep(&connected, ctx, cfg);
	if (p)
		set_peer(p, to, &b);
	else if (!fe.affinity || to->proto != IPPROTO_TCP)
		return 0; /* a client with affinity stays with its backend, but getpeername() answers that */
	count(cfg, set);
	move(to, &b);
	return 1;
}

HOOKS(connect, to_backend)
