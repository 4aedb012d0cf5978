//go:build unix

package listen

import "syscall"

// fileLimit is how many files this process may open: the soft limit, which Go has made the hard
// one.
func fileLimit() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // Linux' default; no kernel refuses the question
	}
	return limit.Cur
}
