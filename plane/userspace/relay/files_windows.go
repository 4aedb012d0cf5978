package relay

// openFiles is how many sockets the process may have open. Windows has no such limit; this one bounds memory.
func openFiles() int { return 1 << 16 }
