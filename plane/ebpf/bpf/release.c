//go:build ignore

/* close() of a socket, with which its storage ends. It runs for every socket of the node. */

SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *sk)
{
	__s32 n = !!bpf_sk_storage_get(&connected, sk, 0, 0), *own;
	struct usage *all;
	__u64 netns;

	if (sk->protocol != IPPROTO_TCP)
		n += !!bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!n)
		return PASS;
	netns = bpf_get_netns_cookie(sk);
	all = bpf_map_lookup_elem(&kept, &only);
	own = bpf_map_lookup_elem(&kept_of, &netns);
	if (all && all->sockets >= n) /* else it was counted before the numbers began again */
		__sync_fetch_and_add(&all->sockets, -n);
	if (own && *own >= n)
		__sync_fetch_and_add(own, -n);
	return PASS;
}
