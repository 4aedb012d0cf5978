// Package manifests reads Services, EndpointSlices, Nodes and ServiceCIDRs from a folder of YAML or
// JSON files and follows its changes. It is the source of a machine without a cluster.
//
//	docs/examples/shop/
//	  web.yaml      several documents a file, lists ("kind: List", "kind: ServiceList"), YAML or JSON
//	  node.json     files that end in .yaml, .yml or .json; hidden files are not read
//
// Without an API server to reject faults or to add defaults, this package does both:
//
//   - Defaults: the namespace is "default", a port without a protocol is TCP, a slice's port
//     without a name has the name "", clusterIPs follow from clusterIP and ipFamilies from
//     clusterIPs. Addresses and node ports are never allocated. Objects without creationTimestamp
//     count as the oldest.
//   - A file that is malformed (it is not YAML; a field is unknown or has the wrong type; an object
//     has no kind or name) is reported with file, line and field, and counts as unchanged: its last
//     good objects stay. If it was never good, its good documents are used.
//   - An object that an API server would refuse (a name that is no DNS name; a Service with a wrong
//     address, port, protocol or the same port twice) is reported and counts as unchanged: its last
//     good version stays. A fault in one part of an EndpointSlice costs that part only.
//   - Of an object that is written twice, the first counts, in the order of file names and lines.
//
// Faults in one file do not affect the others.
package manifests
