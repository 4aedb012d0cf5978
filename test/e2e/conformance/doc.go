// Package conformance runs upstream's own end-to-end tests of the network (e2e.test, [sig-network])
// against the proxy on three nodes, as its chart installs it:
//
//	api      etcd, kube-apiserver, kube-controller-manager, kube-scheduler
//	node1    ┐ containerd, runc, kubelet, CNI plugins of Debian (ptp, portmap);
//	node2    ├ kube-proxy by the chart, CoreDNS, pods of the tests
//	client   ┘ and e2e.test
//
// No image is pulled. The images of the tests are made of agnhost, built from upstream's module,
// and of this machine's programs (images.go).
package conformance
