// Package migrate reads how another proxy was started, and lists the differences to this one
// ("kube-proxy migrate").
//
//	ConfigMap, DaemonSet, Pod, file          ─┐
//	unit, environment file, script (shell.go) ├─Read─▶ Proxy ──Convert──▶ configuration, statements
//	config.yaml of k3s, Cluster of kops      ─┘          └────Steps────▶ commands, forth and back
//
// Every word of the input is used, reported as a statement, or an error (FL-10). The package only
// works on bytes: it neither queries nor changes the node and the cluster. The loader of package
// config interprets flags and fields as at a start, but without this machine's name, files and
// environment. Fields that differ from the default are printed; before that they are loaded again,
// strictly, and compared with the original meaning. Another mode keeps the behaviour for clients as
// far as it can: masqueradeAll, the mark's bit and the periods move to its block, and NodePorts
// stay on all addresses; a statement names the line to remove. The configuration goes to stdout and
// the differences and commands to stderr, so that "kube-proxy migrate FILE >config.yaml" works.
package migrate
