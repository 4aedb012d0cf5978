//go:build ignore

/* close() of a socket, with which its storage ends. */

__inline void unkeep(__u64 netns, __s32 n)
{
	__s32 *is = bpf_map_lookup_elem(&kept, &netns);

	if (is)
		__sync_fetch_and_add(is, -n);
	if (is && *is <= 0)
		bpf_map_delete_elem(&kept, &netns);
}

SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *sk)
{
	__s32 n = !!bpf_sk_storage_get(&connected, sk, 0, 0) + !!bpf_sk_storage_get(&flows, sk, 0, 0);

	if (!n)
		return PASS;
	unkeep(bpf_get_netns_cookie(sk), n);
	unkeep(0, n);
	return PASS;
}
