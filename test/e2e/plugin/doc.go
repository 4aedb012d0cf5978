// Package plugin tests kubectl svcproxy in a cluster of hundreds of nodes.
//
//	client ─ kubectl-svcproxy ─▶ kube-apiserver ─ pods/exec ─▶ Kubelet in node1 ─┬─ real proxies for three nodes
//	                                                                             └─ hollow nodes, real Inspectors
//
// The API server, its authorization and its connection to a kubelet are real; [Kubelet] answers for
// all nodes, with the code by which container runtimes serve commands.
package plugin
