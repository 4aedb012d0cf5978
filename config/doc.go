// Package config turns the command line and the configuration file into one validated [Config].
//
// Both fill the same struct first, the published KubeProxyConfiguration of v1alpha1, so that a flag
// and the field it stands for cannot mean different things:
//
//	flags ──▶ Options ─┬─ --config? ── the file replaces what flags of file fields said (FL-03) ──┐
//	                   └──────────────────────────────────────────────────────────────────────────┴─▶ validate ─▶ Config
//
// A flag, a field of the file, or both are one entry of a section ([kube-proxy/config/option]):
// name, row of the behaviour book, help, whether a change needs a new process. The sections of what
// all modes share are here, a file for each with its values, defaults and checks: proxy.go,
// node.go, servers.go, conntrack.go, logging.go, deprecated.go. Each mode brings its own. Their
// values are laid over the published type (settings.go), and put together in one table (table.go);
// what can be written into a flag and a field of which Go type, kind.go says. A problem is reported
// under the name that the user wrote, flag or field, and all problems are reported at once. What is
// accepted and has no effect is named in a warning. docs/flags.md, docs/configuration.md, the
// chart's schema and the help text are made from the table.
//
// Which mode runs is decided elsewhere, from what was asked for and what the host can do. What
// depends on it, such as what no nodePortAddresses mean, [Config.For] says once that is known.
//
// A file of any age is read (historic.go). [Watch] tells of changes of the file, [Diff] which
// fields changed and whether they can take effect live, [Config.YAML] writes a file that says the
// same.
//
// The package knows the types of Kubernetes and of modes, and no other of ours: Config holds
// strings, numbers and netip values, which cmd/kube-proxy hands on.
package config
