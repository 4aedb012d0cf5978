// Package migrate reads how another proxy was started, and says what will differ with this one ("kube-proxy migrate").
//
//	ConfigMap, DaemonSet, Pod, file, command line ──Read──▶ Proxy ──Convert──▶ configuration, statements
//
// It knows bytes alone: nothing on the node and in the cluster is asked or changed. What the flags and fields mean, the loader of package
// config says, the same that a start uses; what is known of modes and of Cilium is in tables here.
package migrate
