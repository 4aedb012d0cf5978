package lb

import (
	"iter"
	"net/netip"
)

// Expand yields the keys under which a plane with one entry for each address programs k: k itself,
// or, for a NodePort, one key for each of addrs, in their order. It takes a Key and not a Frontend
// because a removal has only the key.
func Expand(k Key, addrs []netip.Addr) iter.Seq[Key] {
	return func(yield func(Key) bool) {
		if !k.IsNodePort() {
			yield(k)
			return
		}
		for _, a := range addrs {
			if !yield(Key{Addr: a, Port: k.Port, Proto: k.Proto}) {
				return
			}
		}
	}
}
