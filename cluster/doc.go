// Package cluster holds what the proxy knows of the cluster: Services, EndpointSlices, this node and the
// service network, as small values without anything that the proxy does not use.
//
// Sources fold [Event]s into a [Store]. The Store is the only copy of an object in the process. Each fold
// says which services are dirty; [Store.View] then gives everything that decides one service. Values are
// immutable once they are in the Store: a change replaces the pointer.
//
// Nothing here decides anything: what a traffic policy or a terminating endpoint means is package policy's.
package cluster
