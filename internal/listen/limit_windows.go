package listen

// fileLimit is the limit that the process assumes: Windows has 2^24 handles for each process, from
// a pool that all share, so we use no more than is usual on a Linux node.
func fileLimit() uint64 { return 1 << 16 }
