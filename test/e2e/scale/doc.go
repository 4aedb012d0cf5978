// Package scale measures the cost of many proxies for one API server.
//
//	etcd ◀── kube-apiserver ◀─┬── hollow node 1 … N    the product with a data plane in memory
//	                          ├── informers 1 … N      with the watches of upstream's kube-proxy
//	                          └── kube-proxy in node1  the real program in nftables mode
//
// All hollow nodes run in this process. Each has its own TLS connection and watches. [Costs]
// measures bytes and processor time for each change, [Fit] projects them to more nodes, and [Storm]
// counts the requests after a failure.
package scale
