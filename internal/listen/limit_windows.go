package listen

// fileLimit is what the process takes for its limit: Windows has 2^24 handles for each, and gives out of the pool that all
// processes share, so we take no more than a Linux node commonly has.
func fileLimit() uint64 { return 1 << 16 }
