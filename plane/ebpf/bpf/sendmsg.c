//go:build ignore

/* sendto() of a UDP socket. A destination keeps its backend while the frontend has it, as a flow of conntrack
 * does. A connected socket receives from the backend that it is connected to and from no other. */

__inline int flow_to(struct bpf_sock_addr *ctx, struct front *to)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct peer *p, *known = 0, *empty = 0;
	struct frontend fe;
	struct backend b;
	struct flows *f;
	__u32 set;

	if (!cfg || !ctx->sk)
		return 0;
	p = peer_of(ctx->sk);
	if (p && is_to(p, to)) {
		copy(to->addr, p->backend_addr);
		to->port = p->backend_port;
		return 1;
	}
	set = lookup(ctx, cfg, to, &fe);
	if (!set || set == REFUSED)
		return set ? -1 : 0;
	f = bpf_sk_storage_get(&flows, ctx->sk, 0, 0);
	if (!f && balances(cfg))
		f = keep(&flows, ctx, cfg);
	if (!f)
		return 0;
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
	if (!known || !balances(cfg) || !choose(&fe, set, bpf_get_netns_cookie(ctx), &b))
		return 0;
#pragma unroll
	for (int i = 0; i < FLOWS; i++) {
		p = &f->peer[i];
		if (p != known && p->backend && is_at(p, &b))
			return 0; /* a reply would not say which of the two destinations it is from */
	}
	set_peer(known, to, &b);
	count(cfg, set);
	move(to, &b);
	return 1;
}

HOOKS(sendmsg, flow_to)
