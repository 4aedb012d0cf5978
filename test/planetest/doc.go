// Package planetest proves that a data plane keeps the promises of Services. One call sends real
// packets through network namespaces for every scenario of test/testdata/scenarios, in both IP
// families:
//
//	func TestConformance(t *testing.T) {
//		planetest.Run(t, planetest.Config{Mode: "nftables", New: newPlane})
//	}
//
// Each scenario creates the plane in the namespace of node1, over the kernel state of the previous
// scenario. Reset writes the first state, and Apply the changes of each step. A failure prints the
// story, the ids of the behaviours, the packet, the expected and the actual outcome, and the row of
// the table that should have decided.
//
// [Transitions] walks at random between the states of all scenarios through Apply alone, and
// expects the state of a fresh plane.
//
// [History] walks through the life of a node: changes, restarts, Resets, damage, other proxies.
// After every step it sends packets to all Services, and between hosts.
//
// [Verbs] proves the effect of each verb of engine.Plane on packets. [Walk] calls the verbs at
// random while calls fail, other programs interfere and planes restart. It then compares the planes
// with fresh ones.
//
// A [Model] answers in place of a kernel that the tests do not have. Run and Transitions accept
// one.
//
// [World] and [Shop] make tables for a plane's own tests.
//
// Environment variables:
//   - PLANETEST_RECORD=COMMIT writes the results to testdata/results, from which [Page] makes
//     docs/conformance.md.
//   - PLANETEST_CORE=1 runs only the scenarios of Config.Core. [Core] proves that they suffice for
//     another kernel.
//   - PLANETEST_VM=1 means that the kernel is emulated. Run then queries the plane about few
//     packets of a state, unless PLANETEST_COMPLETE=1 requests a complete run.
//   - PLANETEST_DUMP=1 adds the plane's whole state to a failure.
package planetest
