// Package plane says how to write a data plane, and holds what all planes share.
//
// A plane turns rows of the desired table (package lb) into state of the kernel, for one IP family. It decides nothing:
// which backend may serve whom stands in the rows. What it does for its caller, package engine, is [Plane]:
//
//	Reset    hold exactly this table, whatever is there: start-up and repair
//	Apply    set each changed key to its new row, or remove it
//	SetNode  take what changed of this machine
//	Probe    make a write that changes nothing: does the kernel take writes at all?
//	Drift    somebody else may have changed our objects
//	Audit    compare the kernel with what was applied, and mend it
//	Pace     how much an Apply should have at most, as lb.Weight counts, or the plane itself ([Weigher])
//
// The rules that every plane keeps, which test/planetest proves:
//
//   - Idempotent. A change may come again, also after a failed Apply that did part of it. Removing what is not there is no
//     error. Old is a hint; Key and New are the truth.
//   - Bounded calls. A change that is too much for one call a plane takes in stages, each of which serves; it names the key in
//     [ApplyResult] until it is done.
//   - O(change). Apply looks at what the changes name. It never lists the kernel and never ranges over all rows. The applied
//     state is kept in memory; Reset reads the kernel, and changes only what differs.
//   - No hole. Without transactions: new backends before frontends, old frontends before old backends.
//   - Only ours. Objects of others are never touched, whatever their state.
//   - A row that accepts ([lb.Frontend.Accepts]) translates nothing: a plane that lets packets to this node through a host
//     firewall does so (DP-08), for the others it is as no row, and Apply says that it wrote nothing.
//   - One bad row costs that row only. A Reset holds what it can, and leaves the rest for later ([ResetResult]): the engine
//     hands it to Apply, whose error names the object.
//   - Errors are returned, never retried, and no plane searches for the culprit among many: both belong to the engine. An
//     error after which the plane no longer knows what the kernel holds wraps [ErrStateLost]; so does every verb but Reset
//     before the first Reset.
//   - Probe reaches the kernel, which must commit it; it is taken for our own by whatever looks for drift, and wraps
//     ErrStateLost where Apply would. It tells one odd row from a kernel that takes nothing (HT-04).
//   - One caller. The engine calls a plane's methods from one goroutine at a time; Drift may be read by another.
//
// # A new mode
//
// A mode is one value, [kube-proxy/mode.Mode]: the function Mode in mode.go of the plane's folder returns it, and plane/all lists
// it. No other code knows the mode's name. What it says there is
//
//   - what people see: Name, Doc, what it falls back to, whether it is tried where no mode is asked for;
//   - what configuration needs: its block and fields, its defaults, the sysctls that it needs;
//   - what it does: Able here? New, Render, and Remove what it left, with the kind of Rules that it shares with other modes;
//   - its Metrics, whose values its planes tell (Measure), as they tell what somebody should know (Notices).
//
// cmd/kube-proxy.TestNewMode has a mode that no other code knows.
//
// # A new plane
//
// It is a folder below this one, with a value of mode.Mode, and a line in plane/all. What it writes itself:
//
//   - how rows are said to its kernel, and in which order;
//   - how the kernel is read back, for Reset, Audit and Drift;
//   - what it keeps of the applied state, to know what a change touches;
//   - a text of its state (Dump), by which planetest.Transitions compares it with a fresh one;
//   - in its mode: whether it is able here, its settings of the host, its leftovers, its metrics;
//   - its differences by intent from the specification, as planetest.Config.Differs.
//
// What it gets:
//
//   - rows that keep the rules of [lb.Check], because the table takes no others;
//   - retries with backoff, the search for the rows that fail, pieces of bounded weight and their order, audits and their
//     periods, and what metrics, health and log tell of them: package engine;
//   - the comparison of what the kernel holds with what it shall hold, for Reset and Audit: plane/internal/diff;
//   - numbers of backend sets and slots of backends that stay over changes and restarts: plane/internal/slots;
//   - the way back in its own state after a batch that the kernel refused: internal/rollback;
//   - a ledger of its own writes, to tell them from what others do: plane/ownwrites;
//   - a search like the engine's for objects of its own that fail among many: internal/bisect;
//   - requests to the kernel that end when their context does: internal/netlink;
//   - the choice of the mode, its fallbacks, render and --cleanup: package mode, and what calls it;
//   - the proof: planetest.Verbs, Run, Transitions and History.
package plane
