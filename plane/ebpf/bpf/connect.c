//go:build ignore

/* connect() to a frontend: the socket connects to a backend, or fails where the frontend rejects. A UDP socket may
 * connect again. If that fails, it stays connected as before, and no hook sees it; so what it was connected to
 * becomes one of its flows. */

__inline void keep_flow(struct bpf_sock_addr *ctx, const struct settings *cfg, const struct peer *p)
{
	struct flows *f = bpf_sk_storage_get(&flows, ctx->sk, 0, 0);
	struct front at = {.port = p->backend_port};
	struct peer *place;

	copy(at.addr, p->backend_addr);
	if (!f)
		f = keep(&flows, ctx, cfg);
	if (!f)
		return;
	place = &f->peer[0];
#pragma unroll
	for (int i = FLOWS - 1; i >= 0; i--)
		if (!f->peer[i].backend || is_from(&f->peer[i], &at))
			place = &f->peer[i];
	*place = *p;
}

__inline int to_backend(struct bpf_sock_addr *ctx, struct front *to)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct frontend fe;
	struct backend b;
	struct verdict v;
	struct peer *p;
	__u32 set, why;

	if (!cfg || !ctx->sk)
		return 0;
	p = bpf_sk_storage_get(&connected, ctx->sk, 0, 0);
	if (p && is_from(p, to))
		p->backend = 0;
	if (to->proto == IPPROTO_UDP)
		end_flows(ctx->sk, to);
	if (!balances(cfg))
		return judge(to, HOST, &fe, &v) ? pass(OFF) : 0;
	set = lookup(ctx, cfg, to, &fe, to->proto != IPPROTO_UDP, 0);
	if (set == REFUSED)
		return -1;
	if (!set)
		return 0;
	why = away(ctx, cfg, to);
	if (!why)
		why = choose(&fe, set, bpf_get_netns_cookie(ctx), &b);
	if (why)
		return pass(why);
	bpf_get_socket_cookie(ctx); /* by which the plane ends it with its backend */
	if (!p)
		p = keep(&connected, ctx, cfg);
	else if (to->proto == IPPROTO_UDP && peer_of(ctx->sk))
		keep_flow(ctx, cfg, p);
	if (p)
		set_peer(p, to, &b);
	else if (!fe.affinity || to->proto != IPPROTO_TCP)
		return pass(STORAGE); /* a client with affinity stays with its backend, but getpeername() answers that */
	count(cfg, set);
	move(to, &b);
	return 1;
}

HOOKS(connect, to_backend)
