// Package config turns the command line and the configuration file into one validated [Config].
//
// Both fill the same struct first, the published KubeProxyConfiguration of v1alpha1, so that a flag and the
// field it stands for cannot mean different things:
//
//	flags ──▶ Options ─┬─ --config? ── the file replaces what flags of file fields said (FL-03) ──┐
//	                   └──────────────────────────────────────────────────────────────────────────┴─▶ validate ─▶ Config
//
// Every flag is one entry of the table in flags.go: its name, group, help text, the field of the file that it
// stands for, and where its value goes. A problem is reported under the name that the user wrote, flag or
// field, and all problems are reported at once.
//
// The package knows the types of Kubernetes and none of ours: Config holds strings, numbers and netip values,
// which cmd/kube-proxy hands on.
package config
