// Package scenario reads the files of test/testdata/scenarios. Each describes one behaviour: the
// objects that a user applies, the resulting table, and the destinations of packets.
//
// All tests use the same files. TestTables here compares the tables with the result of package
// policy, planes compare their renderings, and test/planetest sends the packets through real
// network namespaces. The README in test/testdata/scenarios explains the format.
//
//	s, err := scenario.Parse("clusterip.txtar", content, "")
//	r := s.Replay(lb.IPv4)
//	for step, ok, err := r.Next(); ok; step, ok, err = r.Next() {
//		plane.Apply(ctx, step.Changes)   // or Reset(ctx, step.Table)
//		for _, p := range step.State.Packets { … }
//	}
package scenario
