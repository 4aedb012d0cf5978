// Package oracle computes the expected outcome of a packet. It implements docs/behaviour.md for
// readability, at any cost, and shares only types with the code that it tests: [Rows] is the slow
// twin of policy.Resolve, [World] that of the table, of the winner of a key in conflict, and of a
// data plane's treatment of a frontend. Tests compare with it.
package oracle
