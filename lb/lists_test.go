package lb

import (
	"net/netip"
	"testing"
)

// Lists of up to short endpoints stay as they are: comparing them is cheaper than remembering them.
func TestShortListsStay(t *testing.T) {
	for n, want := range map[int]bool{short - 1: false, short: false, short + 1: true} {
		list := func() Endpoints {
			all := make([]Endpoint, n)
			for i := range all {
				all[i] = Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
			}
			return EndpointsOf(all...)
		}
		l := lists{same: map[Endpoints]Endpoints{}}
		first := l.list(list())
		if got := l.list(list()).list.Shares(first.list); got != want {
			t.Errorf("equal lists of %d endpoints share memory: %t", n, got)
		}
	}
}
