// Package addrs keeps lists of IP addresses in little memory: a node may know a million endpoints.
package addrs

import (
	"net/netip"
	"unsafe"
)

// List is an immutable list of addresses, each with six bits of flags. An address takes 5 bytes if
// the list has only IPv4, else 17. Two lists with the same content are ==. The zero List is empty.
type List struct {
	// packed is the width of an entry, then the entries: a byte of flags and kind, and the address.
	packed string
}

// Flags are the caller's six bits.
type Flags uint8

// The width of entries, with the byte of flags.
const (
	narrow = 1 + 4
	wide   = 1 + 16
)

// The kinds of addresses stand above the flags. The zero Addr has kind 0.
const (
	kind4 = 1 << 6
	kind6 = 2 << 6
	flags = kind4 - 1
)

// Of returns the list of n addresses. Zones are dropped.
func Of(n int, at func(i int) (netip.Addr, Flags)) List {
	if n == 0 {
		return List{}
	}
	if l, ok := pack(n, narrow, at); ok {
		return l
	}
	l, _ := pack(n, wide, at)
	return l
}

// pack returns the list with entries of that width, false if an address does not fit.
func pack(n, width int, at func(i int) (netip.Addr, Flags)) (List, bool) {
	var packed []byte
	for i := range n {
		a, f := at(i)
		if a.Is6() && width == narrow {
			return List{}, false
		}
		if packed == nil {
			packed = make([]byte, 1+n*width)
			packed[0] = byte(width)
		}
		entry := packed[1+i*width:]
		switch {
		case a.Is4():
			four := a.As4()
			f |= kind4
			copy(entry[1:], four[:])
		case a.Is6():
			sixteen := a.As16()
			f |= kind6
			copy(entry[1:], sixteen[:])
		}
		entry[0] = byte(f)
	}
	return List{unsafe.String(&packed[0], len(packed))}, true
}

// Len returns the number of addresses.
func (l List) Len() int {
	if l.packed == "" {
		return 0
	}
	return (len(l.packed) - 1) / int(l.packed[0])
}

// Shares reports whether two lists are equal and share their memory.
func (l List) Shares(o List) bool {
	return len(l.packed) == len(o.packed) && unsafe.StringData(l.packed) == unsafe.StringData(o.packed)
}

// Size returns the memory of the list in bytes, without the List itself.
func (l List) Size() int { return len(l.packed) }

// At returns address i and its flags.
func (l List) At(i int) (netip.Addr, Flags) {
	p := l.packed[1+i*int(l.packed[0]):]
	f := Flags(p[0])
	switch p = p[1:]; f &^ flags {
	case kind4:
		return netip.AddrFrom4([4]byte{p[0], p[1], p[2], p[3]}), f & flags
	case kind6:
		return netip.AddrFrom16([16]byte([]byte(p[:16]))), f & flags
	}
	return netip.Addr{}, f & flags
}
