// Package plane defines the interface of data planes, and holds what all planes share.
//
// A plane turns the frontends of the desired table (package lb) into kernel state, for one IP
// family. It makes no policy decisions: a frontend's routes say which backends serve which clients.
// Package engine drives it through [Plane]:
//
//	Reset    hold exactly this table, from any state: start and repair
//	Apply    set each changed key to its new frontend, or remove it
//	SetNode  apply a change of this machine
//	Probe    make a write that changes nothing: does the kernel accept writes at all?
//	Drift    another program may have changed our objects
//	Audit    compare the kernel with the applied state, and repair it
//	MaxBatchWeight
//	         the recommended maximum weight of an Apply, by lb.Weight or the plane itself ([Weigher])
//
// Every plane follows these rules, which test/planetest proves:
//
//   - Idempotent. A change may be repeated, also after a failed Apply that did part of it. Removing
//     a missing object is no error. Old is a hint; Key and New are the truth.
//   - Bounded calls. If a change is too large for one call, the plane writes it in stages, each of
//     which serves. It returns the key in [ApplyResult] until the change is complete.
//   - O(change). Apply handles only the objects that the changes name. It never lists the kernel
//     and never ranges over all frontends. The plane keeps the applied state in memory; Reset reads
//     the kernel, and writes only the differences.
//   - No hole. Without transactions: new backends before frontends, old frontends before old
//     backends.
//   - Only ours. A plane never touches foreign objects, whatever their state.
//   - A frontend that accepts ([lb.Frontend.Accepts]) translates nothing. A plane that admits
//     packets to this node through a host firewall does so (DP-08). The others treat it as no
//     frontend, and Apply reports that it wrote nothing.
//   - One bad frontend affects only itself. A Reset writes what it can, and leaves the rest for
//     later ([ResetResult]): the engine passes it to Apply, whose error names the object.
//   - Errors are returned, never retried, and no plane searches for the faulty one among many: both
//     are the engine's work. An error after which the plane no longer knows the kernel's content
//     wraps [ErrStateLost]; so does the error of every verb except Reset before the first Reset.
//   - Probe reaches the kernel, which must commit it. Drift detection treats it as our own write.
//     Its error wraps ErrStateLost where Apply's would. It distinguishes one invalid frontend from
//     a kernel that accepts nothing (HT-04).
//   - One caller. The engine calls a plane's methods from one goroutine at a time; another may read
//     Drift.
//
// # A new mode
//
// A mode is one value, [kube-proxy/mode.Mode]. The function Mode in mode.go of the plane's folder
// returns it, and plane/all lists it. No other code contains the mode's name. The value has
//
//   - the text for people: Name, Doc, its fallback, and whether it is tried without a configured
//     mode;
//   - its configuration: its block and fields, its defaults, the sysctls that it needs;
//   - its functions: Able, New, Render and Remove, with the kind of Rules that it shares with other
//     modes;
//   - its Metrics, whose values its planes report (Measure), and its notices to operators
//     (Notices).
//
// No other code names a mode: test/size counts comparisons with the names of modes.
//
// # A new plane
//
// A plane is a folder below this one, with a value of mode.Mode, and a line in plane/all. Its own
// code covers
//
//   - the encoding of frontends for its kernel, and the order of writes;
//   - reading the kernel, for Reset, Audit and Drift;
//   - the applied state, from which it finds the objects that a change affects;
//   - a text of its state (Dump), which planetest.Transitions compares with that of a fresh plane;
//   - in its mode: the check of the host, its settings of the host, its leftovers, its metrics;
//   - its intended differences from the specification, as planetest.Config.Differs.
//
// Other packages provide
//
//   - frontends that satisfy [lb.Check], because the table accepts no others;
//   - retries with backoff, the search for failing frontends, pieces of bounded weight and their
//     order, audits and their periods, and their metrics, health and log: package engine;
//   - which frontends a Reset postpones, and which keys the kernel has and the table lacks:
//     [Postpone] and [Dropped];
//   - the comparison of the kernel with the wanted content, for Reset and Audit:
//     plane/internal/diff;
//   - stable numbers of backend sets and slots of backends: plane/internal/slots;
//   - the rollback of its own state after a batch that the kernel refused: internal/rollback;
//   - a ledger that distinguishes its own writes from foreign ones: plane/selfwrites;
//   - a search like the engine's for failing objects of its own: internal/bisect;
//   - requests to the kernel that end when their context does: internal/netlink;
//   - the choice of the mode, its fallbacks, render and --cleanup: package mode, and its callers;
//   - the proof: planetest.Verbs, Run, Transitions and History.
package plane
