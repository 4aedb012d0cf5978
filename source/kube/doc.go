// Package kube is the source that follows an API server: Services, EndpointSlices, the one Node and
// the ServiceCIDRs.
//
//	API server ──LIST or WATCH──▶ stream ──one object──▶ convert ──record──▶ Reflector ──▶ store ──event──▶ sink
//
// client-go's Reflector does the protocol: the streaming list where the server has it, else LIST,
// then WATCH with bookmarks, relisting when the server has forgotten our version. Its store is ours
// and stores nothing: it turns each call into an event. And what it handles are not API objects but
// records, which hold the compact value and the little that a Reflector asks of an object. API
// objects live for as long as it takes to convert them, one at a time, also in a LIST, which is
// decoded while it arrives: a list of 100,000 slices never exists in memory as API objects.
//
// Nothing is removed because something went wrong. A …Listed event is sent only for a list that was
// complete; errors of any kind are logged ([outage]) and retried for ever. While the server is away
// only the Node is tried; the others follow it.
//
// The other way go events: a [Publisher] sends what the proxy has to tell the cluster.
package kube
