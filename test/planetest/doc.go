// Package planetest proves that a data plane does what a Service promises. One call sends real packets through
// a network of namespaces for every scenario of test/testdata/scenarios, in both IP families:
//
//	func TestConformance(t *testing.T) {
//		planetest.Run(t, planetest.Config{
//			Mode: "nftables",
//			New: func(f lb.Family) (planetest.Plane, error) { return nftables.New(nftables.Config{Family: f}) },
//		})
//	}
//
// For each scenario the plane is made anew in the namespace of node1, on top of what the one before left in the
// kernel. The first state comes through Reset, each step through Apply of the changes alone. A failure prints
// the story, the ids of the behaviours, the packet, what was expected, what happened, and the row of the table
// that should have decided.
//
// [Transitions] walks at random between the states of all scenarios, through Apply alone, and expects that the
// plane ends where a fresh one starts.
//
// [History] walks through what happens to a node: changes, restarts, Resets, damage, other proxies. After every step it
// sends packets to all Services, and to none.
//
// [Verbs] proves each verb of engine.Plane by what it leaves for packets to meet, the same for every plane. [Walk] calls them at random
// while calls fail, others interfere and planes restart, and compares the planes with fresh ones when all is well again.
//
// A [Model] answers in place of a kernel that nobody here has: Run puts the same lines to it, and Transitions walk over it.
//
// [World] and [Shop] make tables for a plane's own tests.
//
// With PLANETEST_RECORD=COMMIT in the environment Run writes what it saw to testdata/results of this package, from
// which docs/conformance.md is made: see [Page]. PLANETEST_CORE=1 runs the scenarios of Config.Core alone, which [Core] proves to
// be enough on another kernel; PLANETEST_VM=1 says that this is one, in emulation, where the plane is asked about few packets of a state unless
// PLANETEST_COMPLETE=1 asks for a complete run. PLANETEST_DUMP=1 adds the plane's whole state to
// a failure.
package planetest
