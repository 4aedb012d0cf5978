// Package policy decides what a Service means: from one service, its endpoints and this node to the rows
// that the desired table must hold. It is pure: no clock, no I/O, no state. All data planes show the same
// behaviour because the rules of docs/behaviour.md, SV-10…SV-67, stand here, once.
//
// One service port goes this way through the package:
//
//	endpoints.go  the slices' entries for the port, one for each address and port   SV-31…SV-33, SV-36, SV-37, DP-50
//	topology.go   which of the ready ones are meant for this node                   SV-38
//	routes.go     traffic policy × endpoints × detector → routes                    SV-50…SV-59, SV-67
//	addresses.go  which addresses are served at all                                 SV-13, SV-26
//	sources.go    who may use a load-balancer address                               SV-15, SV-16
//	resolve.go    addresses × ports → rows                                          SV-10…SV-18
//	node.go       this machine: NodePort addresses, detector, service network       CF-33, CF-63…CF-66
//
// Slices come in no order, so nothing here depends on one: the same facts always give the same rows.
package policy
