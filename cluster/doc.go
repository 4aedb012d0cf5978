// Package cluster holds what the proxy knows of the cluster: Services, EndpointSlices, this node and the
// service network, as small values without anything that the proxy does not use.
//
// Sources fold [Event]s into a [Store]. The Store is the only copy of an object in the process. Each fold
// says which services are dirty; [Store.View] then gives everything that decides one service. Values are
// immutable once they are in the Store: a change replaces the pointer.
//
// Deleting a Node object moves no machine: people delete it to drain the node or to register it anew. So the
// Store keeps what the last object said, addresses, pod CIDRs and zone, and notes that the object is gone, which
// /healthz reports. A new object without addresses or pod CIDRs leaves the last ones in force, because
// kubelets register before they know them; one without a zone takes the zone away (PR-06).
//
// The endpoints of a slice are packed ([Endpoints]), because a node may know a million. An endpoint has one handle for
// its node and zone ([Place]). Zones are for display alone: a zone that changes makes no Service dirty.
//
// Nothing here decides anything: what a traffic policy or a terminating endpoint means is package policy's.
package cluster
