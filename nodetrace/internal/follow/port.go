package follow

// ClientPort reports whether the port of a client is in a range, if that port is not known: then it
// is one of those from 1024 on that the kernel chooses from, and taken for none of a few. known is
// false if some of them are in the range.
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
