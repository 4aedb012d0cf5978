// Package kube is the source that follows an API server: Services, EndpointSlices, the one Node and
// the ServiceCIDRs.
//
//	API server ──LIST or WATCH──▶ stream ──one object──▶ convert ──record──▶ Reflector ──▶ store ──event──▶ sink
//
// client-go's Reflector follows the protocol: the streaming list if the server has it, else LIST,
// then WATCH with bookmarks, and another list when the server has forgotten the version. Its store
// stores nothing: it turns each call into an event. The Reflector handles records instead of API
// objects; a record has the compact value and the few fields that a Reflector reads. The decoder
// converts each API object at once, so a list of 100,000 slices never exists as API objects. All
// objects of a list are one record, a [listing].
//
// Errors remove nothing. A …Listed event is sent only for a complete list; errors are logged
// ([outage]) and retried forever. While the server cannot be connected, only the Node is requested;
// the others follow it. Otherwise streams are independent: trouble of one delays no other.
//
// A server may come back with an older copy of the data, such as a restored backup. So a resource
// compares versions before it follows a stream again ([listWatch.unproven]).
//
// A [Publisher] sends events in the opposite direction, to the cluster.
package kube
