// Package config turns the command line and the configuration file into one validated [Config].
//
// Both fill the same struct first, the published KubeProxyConfiguration of v1alpha1, so that a flag
// and its field cannot mean different things:
//
//	flags ──▶ Options ─┬─ --config? ─ the file replaces flags of its fields (FL-03) ─┐
//	                   └─────────────────────────────────────────────────────────────┴─▶ validate ─▶ Config
//
// A flag, a field of the file, or both are one entry of a section ([kube-proxy/config/option]):
// name, row of the specification, help, whether a change needs a new process. The sections common
// to all modes are in this package, a file for each with its values, defaults and checks: proxy.go,
// node.go, servers.go, conntrack.go, logging.go, deprecated.go. Each mode adds its own. Their
// values overlay the published type (settings.go), and one table joins them (table.go); kind.go has
// the syntax of a flag and a field of each Go type. A problem is reported under the name that the
// user wrote, flag or field, and all problems are reported at once. A warning names settings that
// are accepted and have no effect. docs/flags.md, docs/configuration.md, the chart's schema and the
// help text are generated from the table.
//
// Package mode chooses the mode that runs, from the configuration and the capabilities of the host.
// [Config.For] returns the values that depend on it, such as the default of nodePortAddresses.
//
// Files of all old versions are read (historic.go). [Watch] reports changes of the file, [Diff]
// which fields changed and whether they can take effect live, [Config.YAML] writes an equivalent
// file.
//
// The package imports the types of Kubernetes and of modes, and no others of this proxy: Config has
// strings, numbers and netip values, which cmd/kube-proxy passes on.
package config
