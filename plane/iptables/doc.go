// Package iptables is the data plane for --proxy-mode iptables: chains of the tables filter and nat for one IP family,
// written by iptables-restore, of the nft or of the legacy back end.
//
// # The picture
//
// Names are those that other software knows (G3, DP-02); XXXX stands for a hash of the service port's name.
//
//	nat      PREROUTING, OUTPUT ──▶ KUBE-SERVICES                 by destination; a tree beyond 32 rows
//	           KUBE-SVC-TO-0A60, KUBE-SVC-TO-0A61, …              its branches, by four bits each
//	           KUBE-NODEPORTS                                     the last rule: NodePorts on local addresses; a tree too
//	         KUBE-SVC-XXXX   one of all endpoints; of very many, by chains of parts   (cluster IPs come here; marked if they must be)
//	         KUBE-SVL-XXXX   one of the endpoints of this node
//	         KUBE-EXT-XXXX   an external address: the row's routes one after the other
//	         KUBE-FW-XXXX    an external address with source ranges: to KUBE-EXT-XXXX if the source may
//	         KUBE-FW-SRC-YYYY  the ranges, for all who have the same: back if the source is in one, else untranslated
//	         KUBE-SEP-XXXX   one endpoint: DNAT, marked if it meets itself, remembered if clients stick
//	         KUBE-MARK-MASQ ──▶ KUBE-POSTROUTING                  MASQUERADE what is marked
//	filter   KUBE-SERVICES, KUBE-EXTERNAL-SERVICES                REJECT or DROP what was not translated
//	         KUBE-PROXY-FIREWALL                                  DROP what a source range keeps out
//	           KUBE-FW-SRC-YYYY                                   the ranges, where who is in one is to be REJECTed
//	         KUBE-FORWARD                                         let pass what was translated, and its answers
//	         KUBE-NODEPORTS                                       ACCEPT for ports that tell of endpoints (DP-08)
//	         KUBE-FIREWALL                                        shared with the kubelet: one rule of ours
//	mangle   KUBE-PROXY-CANARY, as in each table                  gone when somebody has flushed the table (DP-13)
//
// # One packet's way
//
// The first packet of a connection from a pod to 10.96.0.10:80, among 5,000 services:
//
//	nat PREROUTING          to KUBE-SERVICES
//	  KUBE-SERVICES         -d 10.96.0.0/16: to KUBE-SVC-TO-0A60, one of at most 16 rules
//	  KUBE-SVC-TO-0A60…     and so on, until a chain of at most 32 rows has -d 10.96.0.10/32 --dport 80
//	  KUBE-SVC-XXXX         the source is a pod's, so no mark; at random to one of the endpoints' chains
//	  KUBE-SEP-XXXX         DNAT
//	filter FORWARD          KUBE-FORWARD: nothing to do; the destination is no service address any more
//	nat POSTROUTING         KUBE-POSTROUTING: not marked: return
//
// # Keeping it
//
// The plane keeps a digest of each chain that it has written. An Apply renders the service ports that the changes name,
// and the branches of the trees on the way to their addresses; chains whose digest differs go into one restore, which is
// atomic for each table. The tree is a function of the rows alone (docs/adr/0011), so a walk of changes ends in the same
// chains as a fresh start. Rules are written exactly as iptables-save prints them, so Reset and Audit compare its output
// with the digests, and a restart writes nothing that is there. Of many rows that no rule leads to the engine's Reset leaves
// the most for later Applies (docs/adr/0021). What is to be written is written in restores of bounded size:
// if nothing of ours is there, the trees first, so that each service answers as soon as its part is in; otherwise
// services first, so that what serves serves until the trees are switched. The legacy programs copy the whole table for
// each restore, so there it is one, which they read while it is rendered.
//
// Whether somebody else has changed a rule is known without a look at rules: nftables count transactions, of which ours
// are taken off, and the kernel tells the size of a legacy table. Only if that is not as it was, or an hour has gone by,
// does Audit list the rules. There is no clock in the plane: the engine asks for an audit once in a sync period.
//
// Where kernel and iptables have the match nfacct, packets that are dropped as INVALID and connections to NodePorts on
// 127.0.0.1 are counted (MT-16, MT-17), by objects that both families share.
//
// Other than in nftables mode, ports and addresses that no Service has pass untouched (SV-62, SV-63, SV-66), and packets
// that conntrack cannot place are dropped unless it is liberal (DP-09).
//
// If iptables refuses what a Reset writes, one more attempt writes everything but the chains of service ports. Those that are not
// as they should be are left for later, and the engine finds the row that is to blame (docs/adr/0002).
//
// The files, in the order of a change's way: state.go (changes of rows), render.go, sources.go and skeleton.go (pure: what chains contain),
// apply.go and stages.go (chains to restores). The other way: snapshot.go (what the kernel holds), reset.go and load.go (all of it), audit.go
// and window.go (what others did). For who asks: lookdiff.go (all that differs), accounting.go (counts) and preview.go. The programs, their
// language and who follows a packet are in internal/xtables and internal/xtwalk.
package iptables
