// Package conntrack deletes conntrack entries of flows to backends that no longer serve.
//
// The kernel translates the first packet of a flow by the rules, and later ones by its conntrack
// table. A TCP connection to a deleted pod ends by itself. A UDP client that keeps its port does
// not notice the deletion: each packet renews the entry, and all packets are lost (PN-01, PN-08).
// The same holds for SCTP (DP-54). So, once rules are in force, entries are deleted that
//
//   - go to an address and port of a frontend with a backend that stopped serving, or of a new or
//     deleted one (DP-50; the port counts, DP-52), for a NodePort on any address that answers
//     NodePorts (PN-02), and
//   - are answered by an endpoint that does not serve that service port (DP-51), or by the service
//     address itself, which means that no route existed. The latter stay until one exists: the next
//     packet would create them again.
//
// On other addresses of the machine, other programs may use the port of a NodePort, for example a
// hostPort: those flows stay. When an address stops answering NodePorts, their flows there are
// deleted once.
//
// Established TCP connections stay (DP-53). When a frontend begins to balance, TCP attempts without
// a translation and an answer are deleted: with their entry, retransmissions would miss the Service
// (TN-82). An answered flow without a translation is not the Service's, and stays (TN-81).
//
// [lb.Frontend.Serves] decides whether a backend serves: traffic policy, topology and draining do
// not matter. So a terminating pod finishes its flows, and loses them when it stops serving.
//
//	engine ──Applied──▶ index: frontends, suspect keys ──▶ worker: one dump ──▶ deletes, in batches
//
// [Cleaner.Applied] only records, in time proportional to the change. The worker waits a little,
// reads the table once for each protocol, with the kernel's filter, and deletes as it reads. Its
// memory does not grow with the table (PN-06), and the writer of rules does not wait for it
// (PN-07).
//
// A dump costs as much as the table is long, and tenants fill it. So the first change is handled at
// once, and all changes of the next second share a pass, or of the next three seconds over TCP
// (TN-96).
//
// The first Applied of an engine has all frontends, so entries from before a restart are checked
// (PN-04). For a Service that was deleted while no proxy ran, the plane reports the frontends that
// it found in the kernel and removed (plane.ResetResult): a Change from nothing to nothing. A
// destination in the service network without a frontend proves nothing, because Services with the
// label service.kubernetes.io/service-proxy-name share that network.
package conntrack
