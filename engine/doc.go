// Package engine is the loop between the desired table and a plane: dirty services are resolved, the table is replaced row by
// row, and the changes are applied. There is one Engine for each IP family (G6).
//
// A change goes through these files, each once:
//
//	inbox.go     Mark: the service is dirty
//	loop.go      Run: take in what is dirty, then one action: a piece of what is new, else a repair
//	resolve.go   turn, resolve: policy computes the rows, Table.Replace tells the changes
//	pending.go   add, and later take and offer: what the plane has not accepted yet
//	write.go     writeFresh, apply, accepted: Plane.Apply
//	programming.go, observers.go: the changes are in force, the observers are told
//
// The first event after an idle time is applied at once; what arrives while a write runs forms the next batch. What is too much
// for one write comes in pieces, and what is new has its part of each (queue.go); so does what a Reset of a large table leaves
// for later. Services are resolved in the same way: a turn of bounded work, then a write, then the next turn.
//
// What goes wrong is repaired by the other files: search.go (a row of a batch), probe.go (the kernel?), reset.go (all),
// audit.go (what others did), node.go. Bookkeeping is in programming.go (which changes are in force), observers.go (what load
// balancers are not told yet), stats.go, nolocal.go and contests.go.
//
// # A key
//
//	state      what the plane holds    next
//	in force   the table's row         changed: queued
//	queued     the old row             written: in force; the batch failed: searched
//	searched   the old or the new row  written: in force; fails alone: failed; the search gives up: waiting
//	failed     the old or the new row  backoff over: searched, by itself
//	waiting    the old or the new row  backoff over: searched, with others that wait
//
// Whatever the state, a key that changes again is queued. After a write that failed it is in doubt: it is offered even where
// what is wanted has become what was there before.
//
// # A service
//
//	state       its rows in the table   next
//	clean       as its objects ask      marked, or the node or the configuration changes: dirty
//	dirty       the old ones            its turn: clean; its policy panics: unresolved
//	unresolved  the old ones            backoff over, or marked: dirty
//
// A turn takes dirty services round robin by namespace until their work reaches a budget: half of it for those that were
// marked since the last turn, half for the others. One service may exceed it, within the bounds of package policy. Before
// the first Reset there is one turn for all.
//
// # The kernel
//
// Whether it takes writes while some fail (HT-04):
//
//	state      a write is taken   a write fails   a row fails alone   probed: taken, refused
//	healthy    healthy            unknown         probe due           -
//	unknown    healthy            unknown         probe due           -
//	probe due  healthy            probe due       probe due           healthy, unknown
//
// A write that the plane had not to make (Apply's written) changes nothing. The plane is probed only if an event waits, and
// nothing else is to be written.
//
// # The table
//
//	state      meaning                                        next
//	reset due  at the start, or the plane's state is lost:    reset succeeds: loading
//	           nothing else is written                        fails: reset due, after a backoff
//	loading    what the Reset left for later is written       all accepted or failed alone: whole
//	                                                          lost: reset due
//	whole      the plane serves what the sources listed, but  lost: reset due
//	           for failed rows
//
// [Stats].Begun is true from the first whole on.
package engine
