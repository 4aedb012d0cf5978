// Package inspect answers operators' questions about a proxy that runs, or about objects alone: what a packet meets, what a Service
// has and why it has no more, how the kernel differs, what changed lately. Its result structs are what the admin socket, the commands
// and the page tell; fields may be added.
//
//	cluster.Store ─┐
//	engine Query, Stats ─┤
//	policy, trace ───────┼─▶ Inspector ─▶ admin socket, commands, page
//	mode.Looker ─────────┤
//	changes, conntrack ──┘
//
// A question holds nobody up: of the desired table it looks at one Service at a time, so that an engine waits for a microsecond at most,
// and computes outside. What costs more than that (to compare all of the kernel, to count connections) is done for one asker at a time.
package inspect
