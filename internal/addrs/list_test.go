package addrs_test

import (
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"kube-proxy/internal/addrs"
)

type entry struct {
	addr  netip.Addr
	flags addrs.Flags
}

func listOf(entries []entry) addrs.List {
	return addrs.Of(len(entries), func(i int) (netip.Addr, addrs.Flags) { return entries[i].addr, entries[i].flags })
}

func TestList(t *testing.T) {
	v4, v6, in6 := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::7"),
		netip.MustParseAddr("::ffff:10.1.2.3")
	for _, want := range [][]entry{
		nil,
		{{v4, 63}},
		{{v4, 1}, {netip.Addr{}, 2}, {v4.Next(), 0}},
		{{v6, 5}, {v6.Next(), 63}},
		{{v4, 1}, {in6, 2}, {v6, 3}, {netip.Addr{}, 4}, {v4, 5}},
	} {
		l := listOf(want)
		var got []entry
		for i := range l.Len() {
			a, f := l.At(i)
			got = append(got, entry{a, f})
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if l != listOf(want) {
			t.Errorf("two lists of %v differ", want)
		}
		if copied := l; !l.Shares(copied) || len(want) > 0 && l.Shares(listOf(want)) {
			t.Errorf("a list of %v does not share its memory with its copy alone", want)
		}
		if len(want) > 0 && l == listOf(want[1:]) {
			t.Errorf("lists of %v and of one less are equal", want)
		}
	}
	if n := unsafe.Sizeof(addrs.List{}); n > 16 {
		t.Errorf("a List takes %d bytes", n)
	}
}

// A list of IPv4 takes 5 bytes for each address, and one allocation.
func TestListMemory(t *testing.T) {
	a := netip.MustParseAddr("10.1.2.3")
	var l addrs.List
	of := func(int) (netip.Addr, addrs.Flags) { return a, 1 }
	if n := testing.AllocsPerRun(10, func() { l = addrs.Of(10_000, of) }); n != 1 {
		t.Errorf("%v allocations", n)
	}
	if n := l.Size(); n != 1+5*10_000 {
		t.Errorf("%d bytes", n)
	}
}
