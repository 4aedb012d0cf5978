package follow

// ClientPort reports whether the unknown port of a client is in a range. The kernel chooses such a
// port from those that begin at 1024; the answer assumes that it is none of a few. known is false
// if the range has more of them than a few, and lacks more.
func ClientPort(low, high uint16) (is, known bool) {
	const first, last, few = 1024, 1<<16 - 1, 64
	in := max(0, int(high)-max(int(low), first)+1)
	switch {
	case in <= few:
		return false, true
	case last-first+1-in <= few:
		return true, true
	}
	return false, false
}
