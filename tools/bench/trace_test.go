package main

import "testing"

// The command is judged by its p50.
func TestTraceRows(t *testing.T) {
	f := figures{}
	f.add(inProgram, line{"AskTrace/nftables/trace", map[string]float64{"ms-p50": 44, "ms-min": 24}})
	wantRows(t, "trace", f, `
trace: the command, with the kernel's own answer and the open connections|10,000|p50 ≤ 50 ms|p50 44 ms (fastest 24 ms)|yes`)
}
