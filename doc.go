// Package kubeproxy is the root of the module and holds no code. The program is in cmd/kube-proxy;
// what lives where stands in docs/architecture.md, and repo_test.go holds the tree to it.
package kubeproxy
