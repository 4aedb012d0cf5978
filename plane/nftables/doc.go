// Package nftables is the data plane for --proxy-mode nftables: one table in each IP family, written over raw
// netlink. The nft program is not needed, but can list what is here (also that of Debian 12, see
// [ruleset.find]).
//
// # The picture
//
// The number of sets and of shared chains does not grow with the cluster, because the kernel finds a set by
// walking the table's list. What grows are elements of maps from plain data to plain data. Only four small maps
// hold verdicts: the kernel looks at every chain that such a map can reach whenever it changes.
//
//	map services       address . protocol . port : class      how is this frontend treated?
//	map cluster-sets   address . protocol . port : set id     which backends serve it? (all of the cluster)
//	map local-sets     address . protocol . port : set id     the same, on this node only
//	map nodeports, nodeport-cluster-sets, nodeport-local-sets: the same by protocol . port
//	map set-shapes     set id : shape                         how many backends, how long do clients stick?
//	map backends       set id . slot : address . port
//	map members        set id . slot : member                 instead of backends, in sets with affinity
//	map member-backends  member . set id : address . port
//	map affinity       set id . hash of client : member       filled by packets, with a timeout; see affinity.go
//	map reserved       which set ids were used; see numbers.go
//
//	map filter-classes, nat-classes     class : verdict       a few dozen at most
//	map cluster-shapes, local-shapes    shape : verdict       one for each size and each time in use, see [shape]
//
//	map source-lists   address . protocol . port : list      who may use this frontend? (with source ranges)
//	set source-ranges  list|length . range                    the ranges of a list, a rule for each length
//	set cluster-ips
//	set equal-bytes    byte . byte, always all 256          two addresses are equal if all their bytes are
//
// What follows from the node, such as the addresses that answer NodePorts, stands in a few rules.
//
// Several frontends of a service port share one backend set; a change of an endpoint changes one or two
// elements of backends. A class is the list of a frontend's routes as a number, see [class]; chains that
// carry out a class are named by it, such as nat.pods-cluster.host-cluster-masq.any-local.
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
//	nat-postrouting (srcnat)                   masquerade if marked, or if a frontend led a backend to itself
//
// Had the class asked for masquerading, the packet would have passed cluster-masq, which sets the mark. A
// frontend without backends is refused in filter-frontends, before translation, where the original address is
// still to be seen, and by connection state, so that established connections go on. An address or port
// that no frontend has reaches filter-forward or filter-output untranslated, and is rejected if the address is a
// cluster IP (SV-62), TCP by a reset; dropped if it only lies in the service network (SV-63).
//
// The base chains of DP-20 are there but for filter-input, which this layout does not need.
//
// # Keeping it
//
// An Apply is one transaction. The applied state is kept in memory; what a refused transaction changed there is taken back.
// Reset reads the kernel once and sends the difference, taking over ids and slots, so that a restart is invisible. Set ids are
// never used again. A table of another layout is replaced in one transaction. Each rule ends in a comment with a
// digest of its content. A second socket hears what others do to the table, and Audit mends just that.
//
// The files, in the order of a change's way: class.go, rules.go, affinity.go (pure: what chains contain), schema.go (the sets);
// plan.go, stage.go with sets.go and numbers.go, then encode.go, all told by apply.go; read.go, adopt.go (what an earlier
// process left), reset.go, audit.go and monitor.go go the other way, with compare.go for all of them. For people preview.go says the
// same state and rules in the language of the nft program.
package nftables
