// Package scenario reads the files of testdata/scenarios: one behaviour each, told as what a user applies,
// what table that must give, and which packets then arrive where.
//
// The same file serves everybody. TestTables here compares the tables with what package policy says, planes
// compare their renderings, and plane/planetest sends the packets through real network namespaces. The
// README in testdata/scenarios explains how to write one.
//
//	s, err := scenario.ParseFile("testdata/scenarios/clusterip.txtar")
//	for state, step := range s.Replay(lb.IPv4).Steps() {
//		plane.Apply(ctx, step.Changes)   // or Reset(ctx, step.Table)
//		for _, p := range state.Packets { … }
//	}
package scenario
