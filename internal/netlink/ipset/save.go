package ipset

import (
	"fmt"
	"io"
)

// Save writes a set and its members as "ipset save" does, for "ipset restore", without values that
// the kernel chooses (bucketsize, initval).
func Save(w io.Writer, s Set, members []Member) error {
	if _, err := fmt.Fprintf(w, "create %s\n", s); err != nil {
		return err
	}
	for _, m := range members {
		if _, err := fmt.Fprintf(w, "add %s %s\n", s.Name, m); err != nil {
			return err
		}
	}
	return nil
}
