// Package iptables is the data plane for --proxy-mode iptables: chains of the tables filter and nat
// for one IP family, written by iptables-restore, of the nft or of the legacy back end.
//
// # The picture
//
// Other software knows the names (G3, DP-02); XXXX stands for a hash of the service
// port's name.
//
//	nat      PREROUTING, OUTPUT ──▶ KUBE-SERVICES                 by destination; a tree beyond 32 entries
//	           KUBE-SVC-TO-0A60, KUBE-SVC-TO-0A61, …              its branches, by four bits each
//	           KUBE-NODEPORTS                                     the last rule: NodePorts of local addresses; a tree
//	         KUBE-SVC-XXXX   one of all endpoints; of very many, by chains of parts; cluster IPs come here
//	         KUBE-SVL-XXXX   one of the endpoints of this node
//	         KUBE-EXT-XXXX   an external address: the frontend's routes in order
//	         KUBE-FW-XXXX    an external address with source ranges: to KUBE-EXT-XXXX if the source may
//	         KUBE-FW-SRC-YYYY  shared ranges: back if the source is in one, else untranslated
//	         KUBE-SEP-XXXX   one endpoint: DNAT, marked if it meets itself, recorded for affinity
//	         KUBE-MARK-MASQ ──▶ KUBE-POSTROUTING                  MASQUERADE marked packets
//	filter   KUBE-SERVICES, KUBE-EXTERNAL-SERVICES                REJECT or DROP untranslated packets
//	         KUBE-PROXY-FIREWALL                                  DROP packets that a source range excludes
//	           KUBE-FW-SRC-YYYY                                   the ranges, where sources in one are REJECTed
//	         KUBE-FORWARD                                         ACCEPT translated packets and their replies
//	         KUBE-NODEPORTS                                       ACCEPT for health check ports (DP-08)
//	         KUBE-FIREWALL                                        shared with the kubelet: one rule of ours
//	mangle   KUBE-PROXY-CANARY, as in each table                  gone if another program flushes the table (DP-13)
//
// # One packet's way
//
// The first packet of a connection from a pod to 10.96.0.10:80, among 5,000 services:
//
//	nat PREROUTING          to KUBE-SERVICES
//	  KUBE-SERVICES         -d 10.96.0.0/16: to KUBE-SVC-TO-0A60, one of at most 16 rules
//	  KUBE-SVC-TO-0A60…     and so on, until a chain of at most 32 entries has -d 10.96.0.10/32 --dport 80
//	  KUBE-SVC-XXXX         the source is a pod's, so no mark; at random to one of the endpoints' chains
//	  KUBE-SEP-XXXX         DNAT
//	filter FORWARD          KUBE-FORWARD: nothing to do; the destination is no service address any more
//	nat POSTROUTING         KUBE-POSTROUTING: not marked: return
//
// # Maintenance
//
// The plane has a digest of each chain that it wrote. An Apply renders the service ports of its
// changes and the branches of the trees on the way to their addresses. Chains whose digest differs
// go into one restore, which is atomic for each table. The tree is a function of the frontends
// alone (docs/adr/0011), so a series of changes ends in the same chains as a fresh start. Rules are
// written exactly as iptables-save prints them. So Reset and Audit compare its output with the
// digests, and a restart writes only what differs. A Reset leaves most new frontends for later
// (docs/adr/0021). It writes restores of bounded size: on an empty node the trees first, so that
// each service works as soon as its part is written, otherwise services first, so that the old
// chains serve until the trees change. The legacy programs copy the whole table for each restore.
// With them a Reset is one restore, which they read while it is rendered.
//
// The plane notices changes of other programs without reading rules: nftables counts transactions,
// ours are subtracted, and the kernel returns the size of a legacy table. Audit lists the rules
// only if these differ, or after an hour. The plane has no clock; the engine requests an audit once
// in a sync period.
//
// If kernel and iptables have the match nfacct, it counts packets that are dropped as INVALID, and
// connections to NodePorts on 127.0.0.1 (MT-16, MT-17). Both families share the counters.
//
// Unlike in mode nftables, ports and addresses without Service are untouched (SV-62, SV-63, SV-66),
// and packets that conntrack finds invalid are dropped unless it is liberal (DP-09).
//
// If iptables refuses a Reset, a second attempt writes everything except chains of service ports.
// Those that differ are left for later, and the engine finds the faulty one (docs/adr/0002).
//
// The files, in the order of a change: state.go (changes of frontends), render.go, sources.go and
// skeleton.go (content of chains, pure), apply.go and stages.go (chains to restores). The other
// way: snapshot.go (the kernel's content), reset.go and load.go (all of it), audit.go and window.go
// (changes of other programs). For queries: differences.go (differences), accounting.go (counts)
// and preview.go. Package xtables has the programs and their language.
package iptables
