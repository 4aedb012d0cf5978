// Package oracle says what must become of a packet. It is written from docs/behaviour.md for reading, at any cost, and
// shares nothing with the code that it judges but the types: [Rows] is the slow twin of policy.Resolve, [World] that of
// the table, of who wins a contested key, and of what a data plane does with a row. Tests compare with it.
package oracle
