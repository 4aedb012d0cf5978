package kernel

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// longestWay is longer than a packet's way through netfilter's hooks.
const longestWay = 200 * time.Millisecond

// AwaitPackets returns when no packet is under way that may have begun to walk the rules before the
// call.
//
// A transaction is atomic, but a packet reads the list of chains before it walks them. It may miss
// both an object that is removed right after its replacement was written, and the replacement. The
// kernel waits for all readers in such a case (an RCU grace period), and so does membarrier(2).
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
	// A kernel with nohz_full CPUs refuses, and one with a single CPU does not wait.
	if errno != 0 || runtime.NumCPU() == 1 {
		time.Sleep(longestWay)
	}
}
