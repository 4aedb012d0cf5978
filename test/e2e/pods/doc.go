// Package pods runs pods on nodes of a testbed: a real containerd with runc, and a real kubelet, in
// the network namespace of each node.
//
//	api 172.18.0.10:6443 ── kube-apiserver, etcd, kube-controller-manager
//	        │
//	node1 ──┴── a separate mount and process namespace (in TestThreeNodes node2 and client have one too)
//	              containerd ── runc ── pods in the network of node1
//	              kubelet
//
// In the tests of this package pods have hostNetwork, like the proxy, which has to work before a
// pod network exists, and the test replaces the scheduler. NodeOptions.Network adds a pod network
// for others.
package pods
