// Package listen keeps TCP listeners where they should be while the process runs and that changes.
//
//	Move ──target─▶ Mover.Run ──▶ Binding.Rebind ──▶ Open, then Serve, each listener in a goroutine of its own
//	                  ▲  every 5 s after a failure        │
//	                  └────────── 1 s later ◀── Broke ────┘ a listener ended, and nobody had closed it
//
// A [Binding] has the listeners of one thing, at one or more addresses. It opens new addresses before it closes old ones,
// except where one is in the way of the other, and has all of the new addresses or stays at the old ones. A [Mover] is
// the loop for one address: it retries failures and reports each once.
//
// The health and metrics ports are open to whoever reaches the node, and 400 idle connections once stopped a process
// with 300 descriptors. So servers have a [Share]: 128 descriptors are the process's own; half of the rest is for
// listeners of Services, and a sixth, at most 512, for the connections of each of the three servers. A [Crowd] closes the
// connection that has waited longest since it came or was last answered; one with a request in hand goes last. Bytes of
// an unfinished header do not count. There is no limit by client, whose addresses are cheap, and none by request.
//
// Who owns the listeners serves them, writes the log and ends the connections; [ShutDown] does that for an
// [http.Server].
package listen
