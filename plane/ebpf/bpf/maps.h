/* The structs and maps that the programs share with the plane. All addresses are 16 bytes, IPv4 as
 * ::ffff:a.b.c.d, and all ports are in network order. A value repeats its key: the kernel may reuse a
 * deleted element while a program still reads it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <linux/in.h>

#define __inline static __always_inline

/* The kernel verifies a function once that has numbers and the hook's context as arguments, and what follows its call
 * once. Inline, it verifies what follows for each way through the function. */
#define ALONE __attribute__((noinline))

typedef __u32 addr_t[4];

/* By this type in the BTF of the map config each version finds the programs of all others, whatever their
 * names. It never changes, nor does the place of the cookie. */
typedef __u64 kube_proxy_node;

/* settings are the only element of its map. */
struct settings {
	kube_proxy_node node; /* cookie of the node's network namespace */
	__u64 heartbeat; /* of the proxy, in ns of CLOCK_MONOTONIC */
	__u64 timeout; /* ns after the heartbeat from which the packet path serves new connections; 0: never */
	__u8 on;     /* new connections are balanced; known sockets are served in any case */
	__u8 scope;  /* one of SCOPE_* */
	__u8 guard;  /* bind() to a NodePort is refused in the node's namespace */
	__u8 counts; /* connections are counted by set */
	__u8 exempts; /* the map exempt has elements */
	__u8 pad[3];
	__s32 most; /* sockets with storage */
	__u32 inode; /* of the node's network namespace */
};

enum { SCOPE_ALL, SCOPE_HOST };

/* The classes of clients: index of frontend.set. */
enum { PODS, HOST, CLASSES };

/* front is what a destination is found by: an ADDRESS, or a NODE_PORT, which has none. */
enum { ADDRESS, NODE_PORT };
struct front {
	addr_t addr;
	__be16 port;
	__u8 proto;
	__u8 kind;
};

/* frontend has the set of backends of each class of clients; 0: the packet path serves it. */
struct frontend {
	struct front front;
	__u32 affinity; /* seconds */
	__u32 set[CLASSES];
	__u8 refuses[CLASSES]; /* one of NO, REJECTS, DROPS: what the packet path then does */
	__u8 passes[CLASSES]; /* why else the packet path serves it: one of the reasons of passed */
};

/* passes is the slot of a backend that was a frontend too when a program last drew from the set, plus 1; 0 for none.
 * Programs alone write it. */
struct set { __u32 set; __u32 count; __u32 passes; };
struct place { __u32 set; __u32 slot; };
struct slot { struct place place; __u32 backend; };

struct backend {
	__u32 backend;
	__u32 set;
	addr_t addr;
	__be16 port;
	__u16 pad;
};

/* choices are what a client remembers, by network namespace. A set has its choice in one of the TRIES places
 * from that of its number, so what a client fills is its own room, and a set that finds no place takes the
 * packet path. */
#define CHOICES 64
#define TRIES 4
struct choice {
	__u64 until; /* CLOCK_MONOTONIC in ns */
	__u32 set;
	__u32 backend;
};
struct choices { struct choice of[CHOICES]; };

/* peer is a destination of a socket: as the program has it, and as the packets have it. */
struct peer {
	addr_t addr;
	addr_t backend_addr;
	__be16 port;
	__be16 backend_port;
	__u32 backend;
	__u32 set;
};

/* The destinations of an unconnected UDP socket. Further ones take the packet path. */
#define FLOWS 8
struct flows { struct peer peer[FLOWS]; };

/* usage is the storage of all sockets. */
struct usage {
	__s32 sockets;
	__u32 lacked; /* calls that found no room */
};

/* Of what is free, a network namespace may have one part in PARTS: alone it has at most a sixteenth of all, and
 * however many others are at their bounds, a further one finds room. */
#define PARTS 15

/* Why a call fails: index of refused. */
enum { NO, REJECTS, DROPS, BIND, REASONS };

/* Why the packet path serves a call to a frontend: index of passed. */
enum {
	NOTHING,
	OFF,        /* the programs are switched off, or the proxy's heartbeat is old */
	BOUND,      /* the socket is bound to a device or a loopback address */
	EXEMPT,     /* its network namespace or cgroup is */
	SCOPE,      /* it is not the node's, and only those are served */
	UNKNOWN,    /* no device of its network namespace leads to the node */
	OWN,        /* the address is one of its network namespace */
	NODE,       /* the address is one of the node, whose holder it belongs to */
	SOURCES,    /* the frontend has source ranges */
	MASQUERADE, /* endpoints must see the node */
	EXTERNAL,   /* an external IP may be any address, also that of a pod */
	NO_BACKEND, /* there is none: the set changes, or a UDP socket connects early */
	ENDPOINT,   /* an endpoint is a frontend too */
	SHARED,     /* the endpoint is that of another destination of the socket */
	AFFINITY,   /* the client has no room for its choice */
	FULL,       /* the UDP socket has no room for the destination */
	STORAGE,    /* the sockets of its network namespace, or all, have too much storage */
	KERNEL,     /* the kernel itself uses the socket, as for MPTCP */
	PASSES
};

/* refusal is a call of a program that fails. */
struct refusal {
	struct front front;
	__u32 reason;
	__u64 netns;
	__u64 cgroup;
	__u32 pid;
	__u32 pad;
	char comm[16];
};

#define MAP(name, map_type, flags, n, key_type, value_type)     \
	struct {                                                \
		__uint(type, BPF_MAP_TYPE_##map_type);          \
		__uint(map_flags, flags);                       \
		__uint(max_entries, n);                         \
		__type(key, key_type);                          \
		__type(value, value_type);                      \
	} name SEC(".maps")

MAP(config, ARRAY, 0, 1, __u32, struct settings);

/* Tables grow: the plane replaces the only element of these maps by a larger copy. */
#define GROWING(name, key_type, value_type)                         \
	struct {                                                    \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);           \
		__uint(max_entries, 1);                             \
		__type(key, __u32);                                 \
		__array(values, struct {                            \
			__uint(type, BPF_MAP_TYPE_HASH);            \
			__uint(map_flags, BPF_F_NO_PREALLOC);       \
			__uint(max_entries, 1024);                  \
			__type(key, key_type);                      \
			__type(value, value_type);                  \
		});                                                 \
	} name SEC(".maps")

/* Without a use of their own the compiler leaves these types incomplete. */
#define KEEP(name) const struct name *name##_type __attribute__((unused));
KEEP(front) KEEP(frontend) KEEP(set) KEEP(place) KEEP(slot) KEEP(backend) KEEP(settings)
KEEP(choice) KEEP(choices) KEEP(peer) KEEP(refusal) KEEP(usage)

GROWING(frontends, struct front, struct frontend);
GROWING(sets, __u32, struct set);
GROWING(slots, struct place, struct slot);
GROWING(backends, __u32, struct backend);

/* This node's addresses, and whether they answer NodePorts. */
MAP(addresses, HASH, BPF_F_NO_PREALLOC, 65536, addr_t, __u8);

/* The cookies of network namespaces, and the numbers of cgroups, whose sockets take the packet path. */
MAP(exempt_netns, HASH, BPF_F_NO_PREALLOC, 65536, __u64, __u32);
MAP(exempt_cgroups, HASH, BPF_F_NO_PREALLOC, 65536, __u64, __u32);

/* The plane deletes what has expired. A client that finds no room takes the packet path. */
MAP(affinity, HASH, BPF_F_NO_PREALLOC, 16384, __u64, struct choices);

/* Connections by set. The plane deletes those of sets that are gone. */
MAP(counters, PERCPU_HASH, BPF_F_NO_PREALLOC, 262144, __u32, __u64);

/* Until when, in ns of CLOCK_MONOTONIC, what a network namespace sends to an address is known to meet the node. */
struct path { __u64 netns; addr_t addr; };
MAP(paths, LRU_HASH, 0, 8192, struct path, __u64);

/* Calls to frontends that take the packet path, by reason. */
MAP(passed, PERCPU_ARRAY, 0, PASSES, __u32, __u64);

/* How many calls were refused, and a sample of them: one a second of a network namespace. */
MAP(refused, PERCPU_ARRAY, 0, REASONS, __u32, __u64);
MAP(sampled, LRU_HASH, 0, 4096, __u64, __u64);
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} refusals SEC(".maps");

/* The destination of a connected socket, and those of an unconnected one. */
MAP(connected, SK_STORAGE, BPF_F_NO_PREALLOC, 0, int, struct peer);
MAP(flows, SK_STORAGE, BPF_F_NO_PREALLOC, 0, int, struct flows);

/* How many elements the two have, in all and by network namespace. The kernel charges them to the proxy. The
 * programs count up and down; the plane corrects both by what exists. */
MAP(kept, ARRAY, 0, 1, __u32, struct usage);
MAP(kept_of, LRU_HASH, 0, 8192, __u64, __s32);

/* The IP family of this instance: 4 or 6. An IPv6 socket may have IPv4 addresses. */
volatile const __u8 family = 4;

/* bpf_set_retval exists, of Linux 5.18: refused calls fail with an errno of ours. */
volatile const __u8 has_retval = 0;

/* The kernel has BTF, by which programs recognise its own sockets. */
volatile const __u8 has_btf = 0;
