//go:build ignore

/* sendto() of a UDP socket. A destination keeps its backend while the frontend has it, as a flow of conntrack
 * does. A connected socket receives from the backend that it is connected to and from no other. */

/* place_of returns where a socket keeps the flow to a destination: which it has, or FLOWS higher one that is empty,
 * or 2 * FLOWS for none. */
ALONE int place_of(struct bpf_sock_addr *ctx, __u64 high, __u64 low, __be16 port)
{
	struct flows *f = ctx->sk ? bpf_sk_storage_get(&flows, ctx->sk, 0, 0) : 0;
	struct front to = {.addr = {high, high >> 32, low, low >> 32}, .port = port};
	int at = 2 * FLOWS;

	if (!f)
		return at;
	for (int i = 0; i < FLOWS; i++) {
		if (!f->peer[i].backend)
			at = FLOWS + i;
		else if (is_to(&f->peer[i], &to))
			return i;
	}
	return at;
}

__inline int flow_to(struct bpf_sock_addr *ctx, struct front *to, int local)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct peer *p, *place;
	struct frontend fe;
	struct backend b;
	struct flows *f;
	__u32 set, why, at;

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
	at = place_of(ctx, HIGH(to->addr), LOW(to->addr), to->port);
	place = &f->peer[at % FLOWS];
	if (at < FLOWS && place->set == set && find_backend(set, place->backend, &b) && is_at(place, &b)) {
		move(to, &b);
		return 1;
	}
	why = at >= 2 * FLOWS ? FULL : balances(cfg) ? away(ctx, cfg, to) : OFF;
	if (!why)
		why = choose(&fe, set, bpf_get_netns_cookie(ctx), &b);
	if (why)
		return pass(why);
#pragma unroll
	for (int i = 0; i < FLOWS; i++) {
		p = &f->peer[i];
		if (p != place && p->backend && is_at(p, &b))
			return pass(SHARED); /* a reply would not say which of the two destinations it is from */
	}
	set_peer(place, to, &b);
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
