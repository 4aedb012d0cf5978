package fake

import (
	"fmt"

	"kube-proxy/lb"
)

// check refuses a row that breaks a rule of package lb, as a kernel would.
func check(family lb.Family, key lb.Key, f *lb.Frontend) error {
	switch {
	case f == nil:
		return nil
	case f.Key != key:
		return fmt.Errorf("row %s is offered for %s", f.Key, key)
	}
	return lb.Check(family, f)
}
