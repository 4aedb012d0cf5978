package nft

import (
	"cmp"
	"testing"

	"golang.org/x/sys/unix"
)

// The range of ports that a comparison selects has just those that it matches when they are known.
func TestBounds(t *testing.T) {
	for _, op := range []uint32{unix.NFT_CMP_EQ, unix.NFT_CMP_NEQ, unix.NFT_CMP_LT, unix.NFT_CMP_LTE, unix.NFT_CMP_GT,
		unix.NFT_CMP_GTE} {
		for _, port := range []uint16{0, 1, 1023, 1024, 65534, 65535} {
			low, high := bounds(op, port)
			for p := range 1 << 16 {
				in := int(low) <= p && p <= int(high)
				if want := compare(op, cmp.Compare(p, int(port))); (in != (op == unix.NFT_CMP_NEQ)) != want {
					t.Fatalf("comparison %d with port %d: port %d, want %t", op, port, p, want)
				}
			}
		}
	}
}
