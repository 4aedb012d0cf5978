// Package nftables is the data plane for --proxy-mode nftables: one table in each IP family,
// written over raw netlink. It does not need the nft program, but nft can list the table (also that
// of Debian 12, see [ruleset.find]).
//
// # The picture
//
// The number of sets and of shared chains does not grow with the cluster, because the kernel finds
// a set by walking the table's list. Elements of maps from plain data to plain data do grow. Only
// four small maps hold verdicts: whenever such a map changes, the kernel checks every chain that it
// can reach.
//
//	map services       address . protocol . port : class      how is this frontend treated?
//	map cluster-sets   address . protocol . port : set id     which backends serve it? (all of the cluster)
//	map local-sets     address . protocol . port : set id     the same, on this node only
//	map nodeports, nodeport-cluster-sets, nodeport-local-sets: the same by protocol . port
//	map set-shapes     set id : shape                         how many backends, how long is affinity?
//	map backends       set id . slot : address . port
//	map members        set id . slot : member                 instead of backends, in sets with affinity
//	map member-backends  member . set id : address . port
//	map affinity       set id . hash of client : member       filled by packets, with a timeout; see affinity.go
//	map reserved       which set ids were used; see numbers.go
//
//	map filter-classes, nat-classes     class : verdict       a few dozen at most
//	map cluster-shapes, local-shapes    shape : verdict       one for each size and each time in use, see [shape]
//
//	map source-lists   address . protocol . port : list      which sources may use this frontend?
//	set source-ranges  list|length . range                    the ranges of a list, a rule for each length
//	set cluster-ips
//	set equal-bytes    byte . byte, always all 256          two addresses are equal if all their bytes are
//
// A few rules hold the node's part, such as the addresses that answer NodePorts.
//
// Several frontends of a service port share one backend set; an endpoint change affects one or two
// elements of backends. A class encodes a frontend's routes as a number, see [class]. The chains
// that implement a class have its name, such as nat.pods-cluster.host-cluster-masq.any-local.
//
// # One packet's way
//
// The first packet of a connection from a pod to 10.96.0.10:80, a service with three backends:
//
//	filter-prerouting-pre-dnat  (dstnat - 10)  ct state new: to filter-frontends
//	  filter-frontends    services gives class pods-cluster.any-cluster-masq; nothing to refuse: return
//	nat-prerouting  (dstnat)                   to nat-frontends
//	  nat-frontends       services gives the class, nat-classes the chain
//	  nat.pods-cluster.any-cluster-masq        a pod's source address: goto cluster
//	  cluster             cluster-sets gives set 7, set-shapes gives 3, cluster-shapes the chain
//	  cluster-3           dnat to backends[7 . random 0..2]
//	nat-prerouting-again  (dstnat + 1)         not met by a packet that was translated, see [secondLook]
//	filter-forward  (filter)                   the destination is no service address any more
//	nat-postrouting (srcnat)                   masquerade if marked, or if a frontend sent a backend to itself
//
// If the class requests masquerading, the packet passes cluster-masq, which sets the mark. A
// frontend without backends is refused in filter-frontends. That is before translation, where the
// packet still has its original address, and depends on the connection state, so established
// connections go on. A packet to an address or port without a frontend reaches filter-forward or
// filter-output untranslated. If the address is a cluster IP, it is rejected (SV-62), TCP with a
// reset; if it is only in the service network, it is dropped (SV-63).
//
// The table has all base chains of DP-20 except filter-input, which this layout does not need.
//
// # Keeping it
//
// An Apply is one transaction. The applied state is kept in memory; if the kernel refuses a
// transaction, the staged state is rolled back. Reset reads the kernel once and sends the
// difference. It takes over ids and slots, so that a restart is invisible. Set ids are never
// reused. A table of another layout is replaced in one transaction. Each rule ends in a comment
// with a digest of its content. A second socket receives notifications of foreign changes, and
// Audit repairs only those.
//
// The files, in the order of a change's way: class.go, rules.go and affinity.go (pure: the content
// of chains), schema.go (the sets); plan.go, stage.go with sets.go and numbers.go, then encode.go,
// all called by apply.go. In the opposite direction go read.go, adopt.go (the state of an earlier
// process), reset.go, audit.go and monitor.go, which share compare.go. preview.go writes the same
// state and rules as text for people, in the language of the nft program.
package nftables
