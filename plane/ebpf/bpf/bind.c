//go:build ignore

/* bind() in the node's namespace to a port that a NodePort has: nobody would reach the program. */

__inline int may_bind(struct bpf_sock *sk, const addr_t addr)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct front port = {.port = bpf_htons(sk->src_port), .proto = sk->protocol, .kind = NODE_PORT};
	addr_t any4 = {0, 0, MAPPED, 0};
	struct frontend fe;

	if (!cfg || !cfg->guard || !is_alive(cfg) || bpf_get_netns_cookie(sk) != cfg->node || is_loopback(addr))
		return PASS;
	if (!(is_zero(addr) || same(addr, any4) || answers(addr)) || !find_front(&port, &fe))
		return PASS;
	copy(port.addr, addr);
	port.kind = ADDRESS;
	refuse(&port, cfg->node, BIND);
	if (has_retval)
		bpf_set_retval(-EADDRINUSE);
	return REFUSE;
}

SEC("cgroup/post_bind4")
int post_bind4(struct bpf_sock *sk)
{
	addr_t addr = {0, 0, MAPPED, sk->src_ip4};

	return may_bind(sk, addr);
}

SEC("cgroup/post_bind6")
int post_bind6(struct bpf_sock *sk)
{
	addr_t addr = {sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]};

	return may_bind(sk, addr);
}
