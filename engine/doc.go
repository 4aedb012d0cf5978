// Package engine is the loop between the desired table and a plane. It resolves dirty Services,
// replaces their frontends in the table, and applies the changes to the plane. There is one Engine
// for each IP family (G6).
//
// A change goes through these files, each once:
//
//	inbox.go     Mark: the Service is dirty
//	loop.go      Run: take in dirty Services, then one action: write new changes, or else repair
//	resolve.go   turn, resolve: policy computes frontends, Table.Replace returns the changes
//	pending.go   add, and later take and offer: changes that the plane has not accepted yet
//	write.go     writeFresh, apply, accepted: Plane.Apply
//	programming.go, observers.go: the changes are in force, the observers receive them
//
// The engine applies the first event after an idle time at once; events that arrive during a write
// form the next batch. A batch that is too large for one write is written in pieces, and new
// changes get a part of each piece (queue.go). The same holds for frontends that a Reset of a large
// table postpones. Services are resolved in the same way: a turn of bounded work, then a write,
// then the next turn.
//
// The other files repair faults: search.go (a frontend of a batch), probe.go (does the kernel take
// writes?), reset.go (everything), audit.go (changes by other programs), node.go. Bookkeeping is in
// programming.go (which changes are in force), observers.go (changes withheld from load balancers),
// stats.go, nolocal.go and conflicts.go.
//
// # A key
//
//	state      the plane holds         next
//	in force   the table's frontend    changed: queued
//	queued     the old one             written: in force; the batch failed: searched
//	searched   the old or the new one  written: in force; fails alone: failed; the search gives up: waiting
//	failed     the old or the new one  backoff over: searched, by itself
//	waiting    the old or the new one  backoff over: searched, with other waiting keys
//
// In every state, a key that changes again is queued. After a failed write the key is in doubt: the
// engine offers it even if the desired frontend is the old one again.
//
// # A service
//
//	state       its frontends           next
//	clean       match its objects       marked, or the node or the configuration changes: dirty
//	dirty       the old ones            its turn: clean; its policy panics: unresolved
//	unresolved  the old ones            backoff over, or marked: dirty
//
// A turn takes dirty Services round robin by namespace until their work reaches a budget: half of
// it for Services marked since the last turn, half for the others. One Service may exceed it,
// within the limits of package policy. Before the first Reset, one turn takes all Services.
//
// # The kernel
//
// Does the kernel take writes while some fail (HT-04)?
//
//	state      write accepted     write failed    one frontend failed  probe: accepted, failed
//	healthy    healthy            unknown         probe due            -
//	unknown    healthy            unknown         probe due            -
//	probe due  healthy            probe due       probe due            healthy, unknown
//
// An Apply that needed no write (its result written) changes nothing. The engine probes the plane
// only if an event waits and nothing else is to be written.
//
// # The table
//
//	state      meaning                                        next
//	reset due  at the start, or the plane's state is lost:    reset succeeds: loading
//	           the engine writes nothing else                 fails: reset due, after a backoff
//	loading    the engine writes the postponed frontends      all accepted or failed alone: whole
//	                                                          lost: reset due
//	whole      the plane serves the listed objects, except    lost: reset due
//	           failed frontends
//
// [Stats].Begun is true from the first state "whole" on.
package engine
