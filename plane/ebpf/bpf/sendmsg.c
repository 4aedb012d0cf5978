//go:build ignore

/* sendto() of a UDP socket. A destination keeps its backend while the frontend has it, as a flow of conntrack
 * does. A connected socket receives from the backend that it is connected to and from no other. */

__inline int flow_to(struct bpf_sock_addr *ctx, struct front *to, int local)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct peer *p, *known = 0, *empty = 0;
	struct frontend fe;
	struct backend b;
	struct flows *f;
	__u32 set, why;

	if (!cfg || !ctx->sk)
		return 0;
	p = peer_of(ctx->sk);
	if (p && !local && is_to(p, to) && serves(p)) {
		copy(to->addr, p->backend_addr);
		to->port = p->backend_port;
		return 1;
	}
	set = lookup(ctx, cfg, to, &fe, 1, local);
	if (set == REFUSED)
		return -1;
	if (!set) {
		end_flows(ctx->sk, to);
		return 0;
	}
	f = bpf_sk_storage_get(&flows, ctx->sk, 0, 0);
	if (!f) {
		why = balances(cfg) ? away(ctx, cfg, to) : OFF;
		if (why)
			return pass(why);
		f = keep(&flows, ctx, cfg);
	}
	if (!f)
		return pass(STORAGE);
#pragma unroll
	for (int i = 0; i < FLOWS; i++) {
		p = &f->peer[i];
		if (!p->backend)
			empty = p;
		else if (is_to(p, to))
			known = p;
	}
	if (known && known->set == set && find_backend(set, known->backend, &b) && is_at(known, &b)) {
		move(to, &b);
		return 1;
	}
	if (!known)
		known = empty;
	why = !known ? FULL : balances(cfg) ? away(ctx, cfg, to) : OFF;
	if (!why)
		why = choose(&fe, set, bpf_get_netns_cookie(ctx), &b);
	if (why || !known)
		return pass(why);
#pragma unroll
	for (int i = 0; i < FLOWS; i++) {
		p = &f->peer[i];
		if (p != known && p->backend && is_at(p, &b))
			return pass(SHARED); /* a reply would not say which of the two destinations it is from */
	}
	set_peer(known, to, &b);
	count(cfg, set);
	move(to, &b);
	return 1;
}

/* A control message may give a datagram another source than its socket has. */
__inline int flow_to4(struct bpf_sock_addr *ctx, struct front *to)
{
	return flow_to(ctx, to, is_loopback((addr_t){0, 0, MAPPED, ctx->msg_src_ip4}));
}

__inline int flow_to6(struct bpf_sock_addr *ctx, struct front *to)
{
	addr_t src = {ctx->msg_src_ip6[0], ctx->msg_src_ip6[1], ctx->msg_src_ip6[2], ctx->msg_src_ip6[3]};

	return flow_to(ctx, to, is_loopback(src));
}

HOOK(sendmsg, 4, flow_to4)
HOOK(sendmsg, 6, flow_to6)
