// Package listen keeps TCP listeners at their configured addresses while the process runs and the
// configuration changes.
//
//	Move ──target─▶ Mover.Run ──▶ Binding.Rebind ──▶ Open, then Serve, each listener in a goroutine of its own
//	                  ▲  every 5 s after a failure        │
//	                  └────────── 1 s later ◀── Broke ────┘ a listener ended without being closed
//
// A [Binding] has the listeners of one server, at one or more addresses. It opens new addresses
// before it closes old ones, except if they conflict, and has all of the new addresses or stays at
// the old ones. A [Mover] is the loop for one address: it retries failures and reports each once.
//
// Any client that reaches the node can connect to the health and metrics ports, and 400 idle
// connections once stopped a process with 300 descriptors. So each server has a [Share]: 128
// descriptors are reserved for the process; half of the rest is for listeners of Services, and a
// sixth, at most 512, for the connections of each of the three servers. A [ConnLimit] closes the
// connection that has been idle longest since it was accepted or last answered; connections with a
// request in progress are closed last. Bytes of an unfinished header do not count. There is no
// limit per client, since addresses are cheap, and none per request.
//
// The owner of the listeners serves them, writes the log and ends the connections; [ShutDown] does
// that for an [http.Server].
package listen
