// Package conntrack makes the kernel forget flows that lead to backends which no longer serve.
//
// The kernel translates the first packet of a flow by the rules and all later ones by its conntrack table.
// A TCP connection to a pod that went away ends by itself. A UDP client that goes on sending from the same
// port does not notice: each packet renews the entry, and all of them are lost for as long as it sends
// (PN-01, PN-08). SCTP behaves alike (DP-54). So, after the rules are in, entries are deleted that
//
//   - were made to an address and port of a row whose backends became fewer, or which went or is new
//     (DP-50; the port counts, DP-52), on any address of this machine for a NodePort (PN-02), and
//   - are answered by something that is not a backend of that service port now: also where it has none left
//     (DP-51), and also by the service address itself, which means that the entry was made while nobody
//     served. This last kind is left alone while nobody serves: the next packet would only make it again.
//
// TCP is never touched (DP-53).
//
// A backend counts as serving if any row of the same service port may send to it, whatever the traffic
// policy of the one row says; so a flow that a policy would no longer allow goes on, as it would for TCP.
// What rows do not know are the endpoints that topology hints keep away from this node and those that drain
// beside ready ones: their flows move to a backend of the row.
//
//	engine ──Applied──▶ index: rows, and which keys are suspect ──▶ worker: one dump ──▶ deletes, in batches
//
// [Cleaner.Applied] only takes notes, in time that follows the change. The worker waits a little for more,
// reads the table once for each protocol in question, with the kernel leaving out other protocols where it
// can, judges entry by entry from a fixed buffer and deletes as it goes: memory does not grow with the table
// (PN-06), and the writer of rules waits for none of it (PN-07). The first Applied of an engine brings all
// rows, so entries from before a restart are looked at too (PN-04); but not those of a service that was deleted
// while no proxy ran: who else may have made them is not known, so they stay until the client pauses.
package conntrack
