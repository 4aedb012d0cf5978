// Package pods runs pods on node1 of a testbed: a real containerd with runc, and a real kubelet, in the node's network namespace.
//
//	api 172.18.0.10:6443 ── kube-apiserver, etcd, kube-controller-manager
//	        │
//	node1 ──┴── mount and process namespace of its own
//	              containerd ── runc ── pods in the network of node1
//	              kubelet
//
// There are no CNI plugins: what runs here has hostNetwork, like the proxy, which has to work before there is a pod network.
// The test stands in for the scheduler.
package pods
