// Package inspect answers operators' queries about a running proxy, or about manifests alone: the
// path of a packet, the endpoints of a Service and why it has no more, the kernel's differences,
// recent changes. The admin socket, the commands and the page show its result structs; fields may
// be added.
//
//	cluster.Store ─┐
//	engine Query, Stats ─┤
//	policy, trace ───────┼─▶ Inspector ─▶ admin socket, commands, page
//	mode.Tracer ─────────┤
//	changes, conntrack ──┘
//
// Queries do not hold up the engines: a query reads the desired table one Service at a time, so
// that an engine waits for a microsecond at most, and computes outside the lock. Expensive queries
// (comparing the whole kernel, counting connections) run one at a time.
package inspect
