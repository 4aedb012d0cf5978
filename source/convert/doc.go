// Package convert turns the API's objects into the values of package cluster. It is pure: no clock,
// no logger, no I/O. Both sources use it, so a Service means the same whether it came from an API
// server or from a file.
//
//	core/v1 Service               → *cluster.Service        or nil: not for this proxy
//	discovery/v1 EndpointSlice    → *cluster.Slice          or nil: not for this proxy
//	core/v1 Node                  → *cluster.Node
//	networking/v1 ServiceCIDR     → *cluster.ServiceCIDR
//
// [SetEvent] and [GoneEvent] return the events for a value and for a deleted object.
//
// A fault in an object is a [Problem], not an error: the faulty part is left out and the rest is
// used. The caller reports it to the user, once per change of the object ([Reporter]).
//
// The results share no memory with the API objects. A decoder may cut all strings of an object out
// of one buffer, and one kept port name would keep that whole buffer alive; with 100,000 objects
// that is most of the memory of the process. So every string is copied or interned, and every slice
// has its exact size.
package convert
