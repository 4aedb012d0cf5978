//go:build ignore

/* getpeername() has the address that the socket connected to, also after its backend is gone. */

__inline int name_of(struct bpf_sock_addr *ctx, struct front *at)
{
	struct peer *p = ctx->sk ? peer_at(ctx->sk, at) : 0;

	return p ? undo(at, p) : 0;
}

HOOKS(getpeername, name_of)
