//go:build ignore

/* recvfrom() of a UDP socket: a reply comes from the address that the socket sent to. */

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	struct front from = {};

	read4(ctx, &from);
	if (answer(ctx, &from))
		write4(ctx, from.addr, from.port);
	return PASS;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	struct front from = {};

	if (read6(ctx, &from) && answer(ctx, &from))
		write6(ctx, from.addr, from.port);
	return PASS;
}
