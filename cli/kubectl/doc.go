// Package kubectl reaches the proxies of a cluster from a user's machine: by the user's kubeconfig
// and kubectl exec.
//
//	api.Client ─▶ exec in the proxy's pod ─▶ kube-proxy connect ─▶ admin socket
//
// [Cluster.Proxies] finds the pods, and [Cluster.Dial] connects to the admin socket of one, so that
// each command, and the page, works as on the node. It needs to list pods and to create pods/exec
// in the proxy's namespace, and to get a Pod that is traced.
//
// It runs as the user, in a process of kubectl; a serving proxy does not use it. *Not here:*
// queries and answers.
package kubectl
