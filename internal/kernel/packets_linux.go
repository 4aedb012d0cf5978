package kernel

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// longestWay is more than a packet takes through the hooks of netfilter, put off or not, where nobody says when it is through.
const longestWay = 200 * time.Millisecond

// AwaitPackets returns when no packet is under way any more that may have begun to walk the rules before the call.
//
// A transaction takes effect at one moment, but a packet reads the list of chains before it walks them, and may be put off between
// the two. So what is removed right after its replacement was written may be missed together with it. The kernel itself waits in
// such a case until all readers that have begun are done (an RCU grace period), and membarrier(2) lets programs do so as well.
func AwaitPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
	// A kernel with CPUs that nothing may disturb (nohz_full) refuses, and one with a single CPU does not wait.
	if errno != 0 || runtime.NumCPU() == 1 {
		time.Sleep(longestWay)
	}
}
