// Package config turns the command line and the configuration file into one validated [Config].
//
// Both fill the same struct first, the published KubeProxyConfiguration of v1alpha1, so that a flag and the
// field it stands for cannot mean different things:
//
//	flags ──▶ Options ─┬─ --config? ── the file replaces what flags of file fields said (FL-03) ──┐
//	                   └──────────────────────────────────────────────────────────────────────────┴─▶ validate ─▶ Config
//
// Every field of the file is one entry of the table in fields.go: its path, its row of the behaviour book, what it does
// here, whether a change of it needs a new process. Every flag is one of the tables in flagtable.go and flagold.go:
// its name, group, the field that it stands for, and where its value goes. A problem is reported under the name that
// the user wrote, flag or field, and all problems are reported at once. What is accepted and has no effect is named in
// a warning. docs/flags.md, docs/configuration.md and the help text are made from the tables.
//
// Which mode runs is decided elsewhere, from what was asked for and what the host can do. What depends on it, such as
// what no nodePortAddresses mean, [Config.For] says once that is known.
//
// A file of any age is read (historic.go). [Watch] tells of changes of the file, [Diff] which fields changed and
// whether they can take effect live, [Config.YAML] writes a file that says the same.
//
// The package knows the types of Kubernetes and none of ours: Config holds strings, numbers and netip values,
// which cmd/kube-proxy hands on.
package config
