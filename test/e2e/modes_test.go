package e2e

import (
	"testing"

	"kube-proxy/test/e2e/testbed"
)

// The essential tests run in each of allModes, others where a mode can make a difference.
var (
	allModes  = []testbed.Mode{testbed.NFTables, testbed.IPTables, testbed.IPTablesLegacy}
	bothModes = []testbed.Mode{testbed.NFTables, testbed.IPTables}
)

// inModes runs a test once for each mode, with a bed that starts the proxy in it.
func inModes(t *testing.T, modes []testbed.Mode, test func(t *testing.T)) {
	t.Helper()
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			inMode(t, mode)
			test(t)
		})
	}
}

// inMode has the bed start the proxy in the mode until the end of the test.
func inMode(t *testing.T, mode testbed.Mode) {
	t.Helper()
	shared, before := bed, bed.Mode
	bed.Mode = mode
	t.Cleanup(func() { shared.Mode = before })
}
