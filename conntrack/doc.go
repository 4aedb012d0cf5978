// Package conntrack makes the kernel forget flows that lead to backends which no longer serve.
//
// The kernel translates the first packet of a flow by the rules and all later ones by its conntrack table.
// A TCP connection to a pod that went away ends by itself. A UDP client that goes on sending from the same
// port does not notice: each packet renews the entry, and all of them are lost for as long as it sends
// (PN-01, PN-08). SCTP behaves alike (DP-54). So, after the rules are in, entries are deleted that
//
//   - were made to an address and port of a row where somebody stopped serving, or which went or is new
//     (DP-50; the port counts, DP-52), for a NodePort on any address of this machine that answers NodePorts (PN-02), and
//   - are answered by something that does not serve that service port now: also where nobody does any more
//     (DP-51), and also by the service address itself, which means that the entry was made while no route
//     went anywhere. This last kind is left alone until one does: the next packet would only make it again.
//
// On other addresses of the machine the port of a NodePort may be somebody else's, such as a pod's hostPort, and is left alone.
// When an address stops to answer NodePorts, the flows that are left there go, once: the rules would not make them again.
//
// Established TCP connections are never touched (DP-53). When a frontend begins to balance, attempts to
// connect to it that have no translation and no answer are forgotten: with their entry, every
// retransmission would miss the Service (TN-82). A flow without a translation that something answers is
// not the Service's, whatever the protocol, and stays (TN-81).
//
// What serves is what [lb.Frontend.Serves] says: each endpoint whose conditions do, although traffic policy or
// topology keep new flows of this node away from it, and although it drains beside ready ones. So a pod that
// is asked to end finishes its flows, as it would over TCP, and loses them when it stops serving.
//
//	engine ──Applied──▶ index: rows, and which keys are suspect ──▶ worker: one dump ──▶ deletes, in batches
//
// [Cleaner.Applied] only takes notes, in time that follows the change. The worker waits a little for more,
// reads the table once for each protocol in question, with the kernel leaving out other protocols where it
// can, judges entry by entry from a fixed buffer and deletes as it goes: memory does not grow with the table
// (PN-06), and the writer of rules waits for none of it (PN-07).
//
// The first Applied of an engine brings all rows, so entries from before a restart are looked at too (PN-04).
// A service that was deleted while no proxy ran is known by the rows that the plane found in the kernel and removed
// (plane.ResetResult): they come as a Change from nothing to nothing. Nothing else would do. That a destination lies in
// the service network and no row is there does not make it ours: services with the label
// service.kubernetes.io/service-proxy-name have their addresses from the same network, and the proxy that serves them
// may run beside us.
package conntrack
