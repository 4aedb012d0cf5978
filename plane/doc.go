// Package plane says how to write a data plane, and holds the two errors that planes share.
//
// A plane turns rows of the desired table (package lb) into state of the kernel, for one IP family. It
// decides nothing: which backend may serve whom stands in the rows. Its caller, package engine, declares
// the two verbs:
//
//	Apply(ctx, []lb.Change) error   set each Key to New, or remove it when New is nil
//	Reset(ctx, *lb.Table) error     hold exactly this table: start-up and repair
//
// The rules that every plane keeps, which plane/planetest proves:
//
//   - Idempotent. A change may come again, also after a failed Apply that did part of it. Removing what is
//     not there is no error. Old is a hint; Key and New are the truth.
//   - O(change). Apply looks at what the changes name. It never lists the kernel and never ranges over all
//     rows. The applied state is kept in memory; Reset reads the kernel, and changes only what differs.
//   - No hole. Without transactions: new backends before frontends, old frontends before old backends.
//   - Only ours. Objects of others are never touched, whatever their state.
//   - A row that accepts ([lb.Frontend.Accepts]) translates nothing: a plane that lets packets to this node
//     through a host firewall does so (DP-08), for the others it is as no row.
//   - One bad row costs that row only. A Reset that cannot hold some rows holds the others, and returns an
//     error that names them (engine.RowsRefused).
//   - Errors are returned, never retried: retry belongs to the engine. They name the object.
//   - One caller. The engine calls a plane's methods from one goroutine at a time.
//
// Beyond the two verbs, Prove(ctx) error makes a write that changes nothing: nil says that the kernel takes writes, though
// it may refuse a row. It must reach the kernel, which must commit it; must be taken for our own by whatever looks for
// drift; and wraps ErrStateLost where Apply would. Without it one row that is refused, in a family where nothing else
// changes, counts as a kernel that takes nothing (HT-04).
//
// What else a plane can do is found by type assertion: see the interfaces in package engine.
package plane
