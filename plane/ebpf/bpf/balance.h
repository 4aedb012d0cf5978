/* From a destination to a backend. Whatever cannot be judged here passes unchanged, and the packet path
 * serves it. */

#define PASS 1
#define REFUSE 0
#define EADDRINUSE 98
#define ECONNREFUSED 111

#define MAPPED bpf_htonl(0xffff)

static const struct choices none; /* zero, of any type */
#define only none                 /* the only key of a map */

__inline int same(const addr_t a, const addr_t b)
{
	return a[3] == b[3] && a[2] == b[2] && a[1] == b[1] && a[0] == b[0];
}

#define copy(to, from) __builtin_memcpy(to, from, sizeof(addr_t))

/* An address as two numbers. */
#define HIGH(a) ((__u64)(a)[1] << 32 | (a)[0])
#define LOW(a) ((__u64)(a)[3] << 32 | (a)[2])

__inline int is_zero(const addr_t a)
{
	return !(a[0] | a[1] | a[2] | a[3]);
}

__inline int is_mapped(const addr_t a)
{
	return !a[0] && !a[1] && a[2] == MAPPED;
}

__inline int is_loopback(const addr_t a)
{
	if (is_mapped(a))
		return (a[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return !a[0] && !a[1] && !a[2] && a[3] == bpf_htonl(1);
}

/* The address of a hook's context, which may be read only in these two ways. read6 reports whether the
 * address is of this instance's family. */
__inline int read4(struct bpf_sock_addr *ctx, struct front *f)
{
	f->addr[2] = MAPPED;
	f->addr[3] = ctx->user_ip4;
	f->port = ctx->user_port;
	return 1;
}

__inline int read6(struct bpf_sock_addr *ctx, struct front *f)
{
	f->addr[0] = ctx->user_ip6[0];
	f->addr[1] = ctx->user_ip6[1];
	f->addr[2] = ctx->user_ip6[2];
	f->addr[3] = ctx->user_ip6[3];
	f->port = ctx->user_port;
	return is_mapped(f->addr) == (family == 4);
}

__inline void write4(struct bpf_sock_addr *ctx, const addr_t addr, __be16 port)
{
	ctx->user_ip4 = addr[3];
	ctx->user_port = port;
}

__inline void write6(struct bpf_sock_addr *ctx, const addr_t addr, __be16 port)
{
	ctx->user_ip6[0] = addr[0];
	ctx->user_ip6[1] = addr[1];
	ctx->user_ip6[2] = addr[2];
	ctx->user_ip6[3] = addr[3];
	ctx->user_port = port;
}

/* From a loopback address no route leads to a backend; a socket of a device has routes of its own. */
__inline int is_bound(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk || sk->bound_dev_if)
		return 1;
	if (sk->family == 2 /* AF_INET */)
		return is_loopback((addr_t){0, 0, MAPPED, sk->src_ip4});
	return is_loopback((addr_t){sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]});
}

/* number_of returns where a socket is in the kernel's memory. */
__inline __u64 number_of(struct bpf_sock *sk)
{
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &sk);
	return number;
}

/* is_kernels reports whether the kernel itself uses a socket: one of MPTCP or L2TP, or a connection of NFS, SMB,
 * Ceph, iSCSI or NVMe. No hook sees it close. Its user asks for the peer elsewhere, and older kernels would have
 * it connect to the backend again when that is gone. */
__inline int is_kernels(struct bpf_sock *sk)
{
	struct sock *is;

	if (!has_btf)
		return 0;
	is = (struct sock *)number_of(sk);
	return BPF_CORE_READ_BITFIELD_PROBED(is, sk_kern_sock);
}

/* DEPTH is how deep below the root a cgroup can be exempt. The kubelet's pods are at 2 and 3, or one deeper
 * in a node that is a container. */
#define DEPTH 6

/* is_exempt reports whether the client's namespace, its cgroup or one above that is exempt. */
ALONE int is_exempt(__u64 netns)
{
	__u64 cgroup;

	if (bpf_map_lookup_elem(&exempt_netns, &netns))
		return 1;
#pragma unroll
	for (int level = 1; level <= DEPTH; level++) {
		cgroup = bpf_get_current_ancestor_cgroup_id(level);
		if (!cgroup)
			return 0;
		if (bpf_map_lookup_elem(&exempt_cgroups, &cgroup))
			return 1;
	}
	return 0;
}

/* is_alive reports whether the last heartbeat of the proxy is recent. */
__inline int is_alive(const struct settings *cfg)
{
	return !cfg->timeout || bpf_ktime_get_ns() <= cfg->heartbeat + cfg->timeout;
}

/* balances reports whether the programs serve new connections. */
__inline int balances(const struct settings *cfg)
{
	return cfg->on && is_alive(cfg);
}

/* pass notes that the packet path serves a call to a frontend. */
__inline int pass(__u32 why)
{
	__u64 *n = bpf_map_lookup_elem(&passed, &why);

	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

/* element returns one of a map, which it makes if it is missing; 0 if there is no room. */
__inline void *element(void *map, const void *key)
{
	void *is = bpf_map_lookup_elem(map, key);

	if (is)
		return is;
	bpf_map_update_elem(map, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, key);
}

/* find looks up an element of a growing table. */
__inline void *find(void *outer, const void *key)
{
	void *table = bpf_map_lookup_elem(outer, &only);

	return table ? bpf_map_lookup_elem(table, key) : 0;
}

/* answers reports whether an address of the node answers NodePorts. */
__inline int answers(const addr_t addr)
{
	__u8 *is = bpf_map_lookup_elem(&addresses, addr);

	return is && *is;
}

__inline int find_front(const struct front *to, struct frontend *fe)
{
	struct frontend *found = find(&frontends, to);

	if (!found)
		return 0;
	*fe = *found;
	barrier();
	return same(found->front.addr, to->addr) && found->front.port == to->port &&
	       found->front.proto == to->proto && found->front.kind == to->kind;
}

/* find_frontend finds what serves the destination: a row of its own, or a NodePort. */
__inline int find_frontend(const struct front *to, int class, struct frontend *fe)
{
	struct front port = {.port = to->port, .proto = to->proto, .kind = NODE_PORT};

	if (find_front(to, fe))
		return 1;
	if (class != HOST && is_loopback(to->addr))
		return 0; /* another namespace's own */
	return answers(to->addr) && find_front(&port, fe);
}

/* find_backend reports whether the set still has the backend. */
__inline int find_backend(__u32 set, __u32 id, struct backend *b)
{
	struct backend *found = find(&backends, &id);

	if (!found)
		return 0;
	*b = *found;
	barrier();
	return found->backend == id && found->set == set && b->set == set;
}

__inline __u32 backend_at(__u32 set, __u32 at)
{
	struct place place = {.set = set, .slot = at};
	struct slot *found = find(&slots, &place);
	__u32 id;

	if (!found)
		return 0;
	id = found->backend;
	barrier();
	return found->place.set == set && found->place.slot == at ? id : 0;
}

/* is_frontend reports whether an address and port are those of a frontend. */
ALONE int is_frontend(__u64 high, __u64 low, __be16 port, __u8 proto)
{
	struct front at = {.addr = {high, high >> 32, low, low >> 32}, .port = port, .proto = proto};
	struct frontend fe;

	return find_frontend(&at, HOST, &fe);
}

/* draw draws a backend of the set, or says why the packet path does. Rules of a frontend must not see packets to a
 * backend at its address, so the packet path serves that backend. It draws among all of the set: if programs served
 * the others, those would have more than their share. So the whole set passes, while the backend is a frontend.
 * A set that shrinks may have an empty slot: it draws again. */
__inline __u32 draw(__u32 set, __u8 proto, struct backend *b)
{
	struct set *s = find(&sets, &set);
	__u32 count, passes, at;
	int found = 0;

	if (!s)
		return NO_BACKEND;
	count = s->count;
	passes = s->passes;
	barrier();
	if (s->set != set || !count)
		return NO_BACKEND;
	at = passes ? passes - 1 : bpf_get_prandom_u32() % count;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		found = find_backend(set, backend_at(set, at), b);
		if (found)
			break;
		at = bpf_get_prandom_u32() % count;
	}
	if (!found)
		return NO_BACKEND;
	at = is_frontend(HIGH(b->addr), LOW(b->addr), b->port, proto) ? at + 1 : 0;
	if (at != passes)
		s->passes = at;
	return at ? ENDPOINT : 0;
}

/* choice_of returns the client's choice of a set, or a place for it; 0 if none is free. */
__inline struct choice *choice_of(struct choices *all, __u32 set, __u64 now)
{
	struct choice *c, *empty = 0;

#pragma unroll
	for (int i = 0; i < TRIES; i++) {
		c = &all->of[(set + i) % CHOICES];
		if (c->set == set)
			return c;
		if (!empty && c->until < now)
			empty = c;
	}
	return empty;
}

/* remember finds the client's last backend, or draws one; or it says why the packet path serves the client. */
__inline __u32 remember(__u32 set, __u8 proto, __u32 seconds, __u64 netns, struct backend *b)
{
	struct choices *all = element(&affinity, &netns);
	__u64 now = bpf_ktime_get_ns();
	struct choice *c = all ? choice_of(all, set, now) : 0;
	__u32 why;

	if (!c)
		return AFFINITY;
	if (c->set == set && c->until >= now && find_backend(set, c->backend, b)) {
		why = is_frontend(HIGH(b->addr), LOW(b->addr), b->port, proto) ? ENDPOINT : 0;
	} else {
		why = draw(set, proto, b);
		if (why)
			return why;
		c->set = set;
		c->backend = b->backend;
	}
	c->until = now + seconds * 1000000000ull;
	return why;
}

/* chosen returns the number of a backend for the client, or, 32 bits higher, why the packet path serves it. */
ALONE __u64 chosen(__u32 set, __u8 proto, __u32 seconds, __u64 netns)
{
	struct backend b = {};
	__u32 why = seconds ? remember(set, proto, seconds, netns, &b) : draw(set, proto, &b);

	return (__u64)why << 32 | b.backend;
}

/* choose chooses a backend for the client, or says why the packet path does. */
__inline __u32 choose(const struct frontend *fe, __u32 set, __u64 netns, struct backend *b)
{
	__u64 is = chosen(set, fe->front.proto, fe->affinity, netns);
	__u32 why = is >> 32;

	return why ? why : find_backend(set, is, b) ? 0 : NO_BACKEND;
}

__inline void count(const struct settings *cfg, __u32 set)
{
	__u64 *n = cfg->counts ? element(&counters, &set) : 0;

	if (n)
		__sync_fetch_and_add(n, 1);
}

/* refuse notes a call that fails. */
__inline void refuse(const struct front *to, __u64 netns, __u32 reason)
{
	__u64 *n = bpf_map_lookup_elem(&refused, &reason), now = bpf_ktime_get_ns(), *last;
	struct refusal r = {.front = *to, .reason = reason, .netns = netns};

	if (n)
		__sync_fetch_and_add(n, 1);
	last = bpf_map_lookup_elem(&sampled, &netns);
	if (last && now - *last < 1000000000ull)
		return;
	bpf_map_update_elem(&sampled, &netns, &now, BPF_ANY);
	r.cgroup = bpf_get_current_cgroup_id();
	r.pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(r.comm, sizeof(r.comm));
	bpf_ringbuf_output(&refusals, &r, sizeof(r), 0);
}

/* verdict is what the tables say of a destination and a class of clients. */
struct verdict {
	__u32 set;     /* of backends; 0: the packet path serves it */
	__u32 refuses; /* one of NO, REJECTS, DROPS: what the packet path then does */
	__u32 why;     /* it serves it, if it does not refuse: one of the reasons of passed */
};

/* judge reports whether the destination has a frontend. */
__inline int judge(const struct front *to, __u32 client, struct frontend *fe, struct verdict *v)
{
	*v = (struct verdict){};
	if (to->proto != IPPROTO_TCP && to->proto != IPPROTO_UDP)
		return 0;
	if (!find_frontend(to, client, fe))
		return 0;
	if (fe->front.kind == ADDRESS && bpf_map_lookup_elem(&addresses, to->addr)) {
		v->why = NODE;
		return 1;
	}
	v->set = client == PODS ? fe->set[PODS] : fe->set[HOST];
	v->refuses = client == PODS ? fe->refuses[PODS] : fe->refuses[HOST];
	v->why = client == PODS ? fe->passes[PODS] : fe->passes[HOST];
	return 1;
}

int strays(__u64 sock, __u32 node, __u64 high, __u64 low); /* namespace.h */

/* away says why what the socket of another network namespace than the node's sends would not meet the node. To
 * look costs more than a connection may, so what was seen counts for a second. */
__inline __u32 away(struct bpf_sock_addr *ctx, const struct settings *cfg, const struct front *to)
{
	struct path path = {.netns = bpf_get_netns_cookie(ctx)};
	__u64 now, *until;
	__u32 why;

	if (path.netns == cfg->node)
		return 0;
	if (!has_btf)
		return UNKNOWN;
	copy(path.addr, to->addr);
	now = bpf_ktime_get_ns();
	until = bpf_map_lookup_elem(&paths, &path);
	if (until && now < *until)
		return 0;
	why = strays(number_of(ctx->sk), cfg->inode, HIGH(to->addr), LOW(to->addr));
	if (!why) {
		now += 1000000000;
		bpf_map_update_elem(&paths, &path, &now, BPF_ANY);
	}
	return why;
}

/* lookup finds the set of backends for the client of ctx; 0 if the packet path serves it, and REFUSED if the
 * call fails. connect() of UDP sends nothing, so it does not fail: the socket may send when there are backends.
 * local: the source is a loopback address, whatever the socket's. */
#define REFUSED 0xffffffff
__inline __u32 lookup(struct bpf_sock_addr *ctx, const struct settings *cfg, const struct front *to, struct frontend *fe,
		      int sends, int local)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	__u32 client = netns == cfg->node ? HOST : PODS;
	struct verdict v;

	if (!judge(to, client, fe, &v))
		return 0;
	if (local || is_bound(ctx))
		return pass(BOUND);
	if (is_kernels(ctx->sk))
		return pass(KERNEL);
	if (cfg->exempts && is_exempt(netns))
		return pass(EXEMPT);
	if (client == PODS && cfg->scope == SCOPE_HOST)
		return pass(SCOPE);
	if (!v.refuses)
		return v.set ? v.set : pass(v.why);
	if (v.refuses == REJECTS && to->proto == IPPROTO_UDP && !sends)
		return pass(NO_BACKEND);
	v.why = away(ctx, cfg, to);
	if (v.why)
		return pass(v.why);
	refuse(to, netns, v.refuses);
	if (v.refuses != REJECTS || !balances(cfg) || !has_retval)
		return 0;
	bpf_set_retval(-ECONNREFUSED);
	return REFUSED;
}

__inline void set_peer(struct peer *p, const struct front *to, const struct backend *b)
{
	*p = (struct peer){.port = to->port, .backend_port = b->port, .backend = b->backend, .set = b->set};
	copy(p->addr, to->addr);
	copy(p->backend_addr, b->addr);
}

/* keep makes an element in the storage of a socket, or returns 0: then the packet path serves it. */
__inline void *keep(void *storage, struct bpf_sock_addr *ctx, const struct settings *cfg)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	struct usage *all = bpf_map_lookup_elem(&kept, &only);
	__s32 *own = element(&kept_of, &netns);
	void *is;

	if (!own || !all)
		return 0;
	if ((__s64)*own * PARTS >= cfg->most - all->sockets) {
		__sync_fetch_and_add(&all->lacked, 1);
		return 0;
	}
	is = bpf_sk_storage_get(storage, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (is) {
		__sync_fetch_and_add(own, 1);
		__sync_fetch_and_add(&all->sockets, 1);
	}
	return is;
}

/* move makes a destination that of the backend. */
__inline void move(struct front *to, const struct backend *b)
{
	copy(to->addr, b->addr);
	to->port = b->port;
}

__inline int is_to(const struct peer *p, const struct front *to)
{
	return p->port == to->port && same(p->addr, to->addr);
}

/* is_at reports whether packets to the peer go to the backend. */
__inline int is_at(const struct peer *p, const struct backend *b)
{
	return p->backend_port == b->port && same(p->backend_addr, b->addr);
}

__inline int is_from(const struct peer *p, const struct front *from)
{
	return p->backend && p->backend_port == from->port && same(p->backend_addr, from->addr);
}

/* serves reports whether the frontend still has the backend of a peer. */
__inline int serves(const struct peer *p)
{
	struct backend b;

	return find_backend(p->set, p->backend, &b) && is_at(p, &b);
}

/* peer_of returns what the socket is connected to, or 0. No hook sees a UDP socket disconnect. */
__inline struct peer *peer_of(struct bpf_sock *sk)
{
	struct peer *p;

	if (sk->state == BPF_TCP_CLOSE)
		return 0;
	p = bpf_sk_storage_get(&connected, sk, 0, 0);
	return p && p->backend ? p : 0;
}

/* peer_at returns the destination to which a socket sent what a backend's address answers, or 0. */
__inline struct peer *peer_at(struct bpf_sock *sk, const struct front *at)
{
	struct peer *p = peer_of(sk);
	struct flows *f;

	if (p && is_from(p, at))
		return p;
	f = bpf_sk_storage_get(&flows, sk, 0, 0);
	if (!f)
		return 0;
#pragma unroll
	for (int i = 0; i < FLOWS; i++)
		if (is_from(&f->peer[i], at))
			return &f->peer[i];
	return 0;
}

/* end_flows forgets the flows of a socket to a backend that it sends or connects to itself. */
__inline void end_flows(struct bpf_sock *sk, const struct front *to)
{
	struct flows *f = bpf_sk_storage_get(&flows, sk, 0, 0);

	if (!f)
		return;
#pragma unroll
	for (int i = 0; i < FLOWS; i++)
		if (is_from(&f->peer[i], to))
			f->peer[i].backend = 0;
}

/* undo makes an address the one that the socket sent to. */
__inline int undo(struct front *from, const struct peer *p)
{
	copy(from->addr, p->addr);
	from->port = p->port;
	return 1;
}

/* HOOKS defines the programs of a hook for the sockets of IPv4 and of IPv6. act returns 1 if it has
 * replaced the address, 0 if that stays, and -1 if the call fails. */
#define HOOK(hook, version, act)                                               \
	SEC("cgroup/" #hook #version)                                          \
	int hook##version(struct bpf_sock_addr *ctx)                           \
	{                                                                      \
		struct front at = {.proto = ctx->protocol};                    \
		int did = read##version(ctx, &at) ? act(ctx, &at) : 0;         \
                                                                               \
		if (did > 0)                                                   \
			write##version(ctx, at.addr, at.port);                 \
		return did < 0 ? REFUSE : PASS;                                \
	}
#define HOOKS(hook, act) HOOK(hook, 4, act) HOOK(hook, 6, act)
