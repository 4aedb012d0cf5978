//go:build ignore

/* recvfrom() of a UDP socket: a reply comes from the address that the socket sent to. What an address sends that
 * is no longer a backend's is its own. */

__inline int answer(struct bpf_sock_addr *ctx, struct front *from)
{
	struct peer *p = ctx->sk ? peer_at(ctx->sk, from) : 0;

	return p && serves(p) ? undo(from, p) : 0;
}

HOOKS(recvmsg, answer)
