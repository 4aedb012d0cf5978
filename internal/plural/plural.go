// Package plural writes numbers of things.
package plural

import "fmt"

// Count is a number of things, as in "1 Service" and "2 Services".
func Count[N ~int | ~uint32 | ~uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
