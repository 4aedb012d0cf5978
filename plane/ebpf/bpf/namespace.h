/* Whether what a socket of another network namespace sends would meet the node. The program reads the
 * devices of the namespace, because addresses say nothing: a network inside a pod may have those of pods. */

/* More devices of a namespace, or addresses of a device, are not read: the packet path serves it. */
#define DEVICES 32
#define ADDRESSES 16

/* The kinds of devices, with their last 0, in little endian. */
#define VETH 0x68746576ull
#define NETKIT 0x74696b74656eull

/* container is the struct that has this list. */
#define container(at, type, list) ((struct type *)((void *)(at) - bpf_core_field_offset(struct type, list)))

/* private_of is where the data of a device's driver begins: aligned to 32 bytes until Linux 6.11. */
__inline void *private_of(struct net_device *device)
{
	if (bpf_core_field_exists(struct net_device___6_12, priv))
		return (void *)device + bpf_core_field_offset(struct net_device___6_12, priv);
	return (void *)device + ((bpf_core_type_size(struct net_device) + 31) & ~31);
}

/* leads_to reports whether a device is one end of a pair whose other end is in the network namespace. The
 * private data of both drivers begins with that other end. */
ALONE int leads_to(__u64 number, __u32 inode)
{
	struct net_device *device = (void *)number, *peer = 0;
	const char *name = BPF_CORE_READ(device, rtnl_link_ops, kind);
	__u64 kind = 0;

	bpf_probe_read_kernel(&kind, sizeof(kind), name); /* the first letters */
	if (kind << 24 != VETH << 24 && kind << 8 != NETKIT << 8)
		return 0;
	bpf_probe_read_kernel(&peer, sizeof(peer), private_of(device));
	return BPF_CORE_READ(peer, nd_net.net, ns.inum) == inode;
}

__inline int has_address4(struct net_device *device, __be32 addr)
{
	struct in_ifaddr *at = BPF_CORE_READ(device, ip_ptr, ifa_list);

	for (int i = 0; i < ADDRESSES; i++) {
		if (!at)
			return 0;
		if (BPF_CORE_READ(at, ifa_local) == addr)
			return 1;
		at = BPF_CORE_READ(at, ifa_next);
	}
	return -1;
}

__inline int has_address6(struct net_device *device, __u64 high, __u64 low)
{
	struct inet6_dev *in = BPF_CORE_READ(device, ip6_ptr);
	struct list_head *end, *at;
	__u64 is[2] = {};

	if (!in)
		return 0;
	end = (void *)in + bpf_core_field_offset(struct inet6_dev, addr_list);
	at = BPF_CORE_READ(end, next);
	for (int i = 0; i < ADDRESSES; i++) {
		if (at == end || !at)
			return 0;
		bpf_core_read(is, sizeof(is), &container(at, inet6_ifaddr, if_list)->addr);
		if (!((is[0] ^ high) | (is[1] ^ low)))
			return 1;
		at = BPF_CORE_READ(at, next);
	}
	return -1;
}

/* has_address reports whether a device has the address: 1, 0, or -1 for too many addresses. */
ALONE int has_address(__u64 number, __u64 high, __u64 low)
{
	struct net_device *device = (void *)number;

	return family == 6 ? has_address6(device, high, low) : has_address4(device, low >> 32);
}

/* strays says why packets of a socket to an address would not meet the node; 0 if they would. */
ALONE int strays(__u64 sock, __u32 node, __u64 high, __u64 low)
{
	struct net *net = BPF_CORE_READ((struct sock *)sock, __sk_common.skc_net.net);
	struct list_head *end = (void *)net + bpf_core_field_offset(struct net, dev_base_head);
	struct list_head *at = BPF_CORE_READ(end, next);
	__u64 device;
	int leads = 0, has;

	for (int i = 0; i < DEVICES; i++) {
		if (at == end || !at)
			return leads ? 0 : UNKNOWN;
		device = (__u64)container(at, net_device, dev_list);
		has = has_address(device, high, low);
		if (has)
			return has > 0 ? OWN : UNKNOWN;
		leads |= leads_to(device, node);
		at = BPF_CORE_READ(at, next);
	}
	return UNKNOWN;
}
