//go:build ignore

/* close() of a socket, with which its storage ends. */

SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *sk)
{
	__s32 n = !!bpf_sk_storage_get(&connected, sk, 0, 0) + !!bpf_sk_storage_get(&flows, sk, 0, 0);
	__u64 netns = bpf_get_netns_cookie(sk);
	__s32 *own, *all = bpf_map_lookup_elem(&kept, &only);

	if (!n || !all)
		return PASS;
	__sync_fetch_and_add(all, -n);
	own = bpf_map_lookup_elem(&kept_of, &netns);
	if (own)
		__sync_fetch_and_add(own, -n);
	return PASS;
}
