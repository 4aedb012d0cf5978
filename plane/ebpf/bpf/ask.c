//go:build ignore

/* What the programs do with a destination, for `kube-proxy trace` and tests: no hook, but run by
 * BPF_PROG_RUN with a question as the packet, which it answers in place. It remembers nothing, so a client
 * with affinity may get another backend. */

/* question is asked at the hook of a connect() or sendto(). */
struct question {
	struct front to;
	__u32 client; /* class */
	__u64 netns;
	/* the answer */
	__u32 found; /* there is a frontend */
	__u32 set;
	__u32 count;
	__u32 refuses;
	struct backend backend; /* that was drawn, or is remembered, if nothing says why not */
	__u32 remembered;
	__u32 on;
	__u32 why; /* the packet path serves it */
	__u32 pad;
};
KEEP(question)

__inline void reply(struct question *q, const struct settings *cfg)
{
	struct choices *all = bpf_map_lookup_elem(&affinity, &q->netns);
	__u64 now = bpf_ktime_get_ns();
	struct frontend fe = {};
	struct verdict v;
	struct choice *c;
	struct set *s;

	q->on = balances(cfg);
	q->found = judge(&q->to, q->client, &fe, &v);
	q->set = v.set;
	q->refuses = v.refuses;
	q->why = v.why;
	if (!q->set)
		return;
	s = find(&sets, &q->set);
	q->count = s ? s->count : 0;
	c = all && fe.affinity ? choice_of(all, q->set, now) : 0;
	q->remembered = c && c->set == q->set && c->until >= now && find_backend(q->set, c->backend, &q->backend);
	if (!q->remembered)
		q->why = draw(q->set, q->to.proto, &q->backend);
	else if (is_frontend(HIGH(q->backend.addr), LOW(q->backend.addr), q->backend.port, q->to.proto))
		q->why = ENDPOINT;
}

SEC("tc")
int ask(struct __sk_buff *skb)
{
	struct settings *cfg = bpf_map_lookup_elem(&config, &only);
	struct question q;

	if (!cfg || bpf_skb_load_bytes(skb, 0, &q, sizeof(q)))
		return 1;
	reply(&q, cfg);
	return bpf_skb_store_bytes(skb, 0, &q, sizeof(q), 0) ? 1 : 0;
}
