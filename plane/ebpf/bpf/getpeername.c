//go:build ignore

/* getpeername() has the address that the socket connected to. */

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct front from = {};

	read4(ctx, &from);
	if (answer(ctx, &from))
		write4(ctx, from.addr, from.port);
	return PASS;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct front from = {};

	if (read6(ctx, &from) && answer(ctx, &from))
		write6(ctx, from.addr, from.port);
	return PASS;
}
