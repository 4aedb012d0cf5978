/* The structs and maps that the programs share with the plane. All addresses are 16 bytes, IPv4 as
 * ::ffff:a.b.c.d, and all ports are in network order. A value repeats its key: the kernel may reuse a
 * deleted element while a program still reads it. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <linux/in.h>

typedef __u32 addr_t[4];

/* settings are the only element of its map. */
struct settings {
	__u64 node;  /* cookie of the node's network namespace */
	__u8 on;     /* new connections are balanced; known sockets are served in any case */
	__u8 scope;  /* one of SCOPE_* */
	__u8 guard;  /* bind() to a NodePort is refused in the node's namespace */
	__u8 counts; /* connections are counted by set */
	__u32 pad;
};

enum { SCOPE_ALL, SCOPE_HOST };

/* The classes of clients: index of frontend.set. */
enum { PODS, HOST, ANYWHERE, CLASSES };

/* front is what a destination is found by. A NodePort has the address zero. */
struct front {
	addr_t addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};

/* frontend has the set of backends of each class of clients; 0: the packet path serves it. */
struct frontend {
	struct front front;
	__u32 affinity; /* seconds */
	__u32 set[CLASSES];
};

struct set {
	__u32 set;
	__u32 count;
};

struct place {
	__u32 set;
	__u32 slot;
};

struct slot {
	struct place place;
	__u32 backend;
};

struct backend {
	__u32 backend;
	__u32 set;
	addr_t addr;
	__be16 port;
	__u16 pad;
};

struct client {
	__u64 netns;
	__u32 set;
	__u32 pad;
};

struct choice {
	__u64 until; /* CLOCK_MONOTONIC in ns */
	__u32 backend;
	__u32 pad;
};

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
struct flows {
	struct peer peer[FLOWS];
};

/* The flags of a network namespace. */
enum { OPTED_OUT = 1, NOT_A_POD = 2 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} config SEC(".maps");

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
const struct front *front_type __attribute__((unused));
const struct frontend *frontend_type __attribute__((unused));
const struct set *set_type __attribute__((unused));
const struct place *place_type __attribute__((unused));
const struct slot *slot_type __attribute__((unused));
const struct settings *settings_type __attribute__((unused));
const struct client *client_type __attribute__((unused));
const struct choice *choice_type __attribute__((unused));
const struct peer *peer_type __attribute__((unused));
const struct backend *backend_type __attribute__((unused));

GROWING(frontends, struct front, struct frontend);
GROWING(sets, __u32, struct set);
GROWING(slots, struct place, struct slot);
GROWING(backends, __u32, struct backend);

/* This node's addresses that answer NodePorts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, addr_t);
	__type(value, __u32);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} namespaces SEC(".maps");

/* The plane deletes expired choices. A client that finds no room takes the packet path: nobody's choice is
 * evicted for another's. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct client);
	__type(value, struct choice);
} affinity SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* The destination of a connected socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct peer);
} connected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flows);
} flows SEC(".maps");

/* The IP family of this instance: 4 or 6. An IPv6 socket may have IPv4 addresses. */
volatile const __u8 family = 4;
