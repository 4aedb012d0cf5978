// Package preflight inspects a node on which the proxy is to run, and reports obstacles
// ("kube-proxy check").
//
//	Look, the probes ──Facts──▶ Judge, pure ──▶ findings ──▶ text, JSON, exit code
//
// It changes nothing on the node: no rule, sysctl, link, file or module. Whether a mode can run is
// found by doing, on a thread in a network namespace that ends with the question. Modules are of no
// namespace, and nothing takes the loading of one back: a mode says which ones its question may
// load ([mode.Mode].Modules), and is not asked where the kernel would load one, unless
// Setup.LoadModules says so. [system.Host.Plan] says what would be set. A probe has a bounded time,
// and slow probes run concurrently. A fact that a probe cannot find, for lack of a privilege or of
// an answer, is a finding too ([Unknown]), not an OK.
//
// Every kind of finding is one value in the list of kinds, from which docs/check.md is made. Ids,
// severities and the fields of JSON are an interface: scripts read them. No finding is repaired by
// the program.
package preflight
