// Package scenario reads the files of test/testdata/scenarios: one behaviour each, told as what a user applies,
// what table that must give, and which packets then arrive where.
//
// The same file serves everybody. TestTables here compares the tables with what package policy says, planes
// compare their renderings, and test/planetest sends the packets through real network namespaces. The
// README in test/testdata/scenarios explains how to write one.
//
//	s, err := scenario.ParseFile("test/testdata/scenarios/clusterip.txtar")
//	for state, step := range s.Replay(lb.IPv4).Steps() {
//		plane.Apply(ctx, step.Changes)   // or Reset(ctx, step.Table)
//		for _, p := range state.Packets { … }
//	}
package scenario
