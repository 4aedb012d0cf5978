// Package netlab builds a small Kubernetes-like network out of Linux network
// namespaces, in process, without the ip program. Tests, benchmarks and
// `make run` send real packets through it.
//
//	                 switch (bridge br0, no addresses)
//	  ┌──────────────┬──────────────┬──────────────┐
//	node1          node2          client          sink
//	172.18.0.2     172.18.0.3     172.18.0.100    172.18.0.254
//	fd00:18::2     fd00:18::3     fd00:18::100    fd00:18::fe
//	  │              │
//	pod1 10.1.1.11   pod4 10.1.2.14    (fd00:10:1:1::11 …, fd00:10:1:2::14 …)
//	pod2 10.1.1.12   pod5 10.1.2.15
//	pod3 10.1.1.13
//
// Every host is a namespace with one interface, eth0. A pod's eth0 is a veth
// whose other end lies in its node and is named vethpod1, vethpod2, …. With
// Options.Bridge those ends are ports (hairpin on) of the bridge cbr0, which has
// the first address of the node's pod range; without it they are routed one by
// one and the node has no address of the pod range. A pod has a /32 (/128)
// address and reaches everything, its neighbours too, through its node's IP
// stack, so a translated reply cannot take a short cut over the bridge.
//
// The default route of both nodes is the sink, which drops silently: a packet to an untranslated
// service address gets no answer. The client routes the service, load-balancer and external ranges
// to node1, and each node's pod range to that node. No host owns an address of those ranges.
//
// All neighbour entries are permanent: no packet waits for ARP or ND. ICMP errors
// have no rate limit in any host. Bridges do not call iptables (br_netfilter),
// whether that module is loaded or not.
//
// A lab that is not Named exists in file descriptors only: when the process ends, however it ends,
// the kernel removes it.
package netlab
