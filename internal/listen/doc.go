// Package listen keeps TCP listeners where they should be while the process runs and that changes.
//
//	Move ──target─▶ Mover.Run ──▶ Binding.Rebind ──▶ Open, then Serve, each listener in a goroutine of its own
//	                  ▲  every 5 s after a failure        │
//	                  └────────── 1 s later ◀── Broke ────┘ a listener ended, and nobody had closed it
//
// A [Binding] has the listeners of one thing, at one or more addresses. Told of other addresses it opens what is new before
// it closes what is old, except where one is in the way of the other, and has all of the new addresses or stays at the
// old ones. A [Mover] is the loop for one address: it tries again what fails, and tells of it once.
//
// A [Crowd] bounds the connections of servers, and a [Share] what all of them may take of the process's descriptors.
//
// Who owns the listeners serves them, writes the log and ends the connections; [ShutDown] does that for an
// [http.Server].
package listen
