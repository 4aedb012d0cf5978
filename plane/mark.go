package plane

import "fmt"

// MasqueradeMark returns the packet mark that requests masquerading, for the bit that the
// configuration names; nil means 14 (G3).
func MasqueradeMark(bit *int) (uint32, error) {
	n := 14
	if bit != nil {
		n = *bit
	}
	if n < 0 || n > 31 {
		return 0, fmt.Errorf("masquerade bit %d: want 0 to 31", n)
	}
	return 1 << n, nil
}
