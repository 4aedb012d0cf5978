// Package policy implements the semantics of Services: it computes the frontends of the desired
// table from one Service, its endpoints and this node. It is pure: no clock, no I/O, no state. All
// data planes behave the same because the rules of docs/behaviour.md, SV-10…SV-67, are implemented
// here, once.
//
// One service port passes through these files:
//
//	endpoints.go  the slices' entries for the port, one for each address and port   SV-31…SV-33, SV-36, SV-37, DP-50
//	topology.go   the ready endpoints with hints for this node                      SV-38
//	routes.go     traffic policy × endpoints × detector → routes                    SV-50…SV-59, SV-67
//	addresses.go  the served addresses                                              SV-13, SV-26
//	sources.go    allowed clients of a load-balancer address                        SV-15, SV-16
//	resolve.go    addresses × ports → frontends                                     SV-10…SV-18
//	node.go       this machine: NodePort addresses, detector, service network       CF-33, CF-63…CF-66
//
// Slices arrive in any order, so no result depends on it: the same facts always give the same
// frontends.
package policy
