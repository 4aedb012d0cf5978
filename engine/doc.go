// Package engine is the loop between the desired table and a plane: dirty services are resolved, the table
// is replaced row by row, and the changes are applied. There is one Engine for each IP family (G6).
//
//	Mark(dirty) ─▶ resolve (policy) ─▶ Table.Replace ─▶ pending ─▶ Plane.Apply ─▶ observers
//	                                                      ▲              │ failed
//	                                                      └── in doubt ◀─┘ retried with backoff, alone
//
// The first event after an idle time is applied at once; what arrives while a write runs forms the next
// batch. What is too much for one write comes in pieces, and what is new has its part of each (queue.go); so does what a
// Reset of a large table leaves for later. A failed write may be half done: its keys are in doubt, and are offered again even where the wish
// has become what was there before. If a row alone is refused and nothing else is to be written, the plane is asked
// for a write that changes nothing: it tells an odd row from a kernel that takes nothing (HT-04).
package engine
