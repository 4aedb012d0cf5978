// Package cluster holds the proxy's data about the cluster: Services, EndpointSlices, this node and
// the service network, as small values without fields that the proxy does not use.
//
// Sources fold [Event]s into a [Store]. The Store has the only copy of an object in the process.
// Each fold returns the dirty Services; [Store.View] then returns all data of one Service. Values
// are immutable once they are in the Store: a change replaces the pointer.
//
// Deleting a Node object moves no machine: operators delete it to drain the node or to register it
// again. So the Store keeps the addresses, pod CIDRs and zone of the last object, and records that
// the object is gone, which /healthz reports. A new object without addresses or pod CIDRs leaves
// the last ones in force, because kubelets register before they have them; a new object without a
// zone removes the zone (PR-06).
//
// The endpoints of a slice are packed ([Endpoints]), because a node may have a million of them. An
// endpoint has one handle for its node and zone ([Place]). Zones are for display only: a changed
// zone makes no Service dirty.
//
// This package makes no decisions: package policy implements traffic policies and terminating
// endpoints.
package cluster
