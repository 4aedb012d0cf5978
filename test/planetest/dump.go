package planetest

import "errors"

// Dump returns the plane's state as text. The plane offers it by a method Dump() string or Dump()
// (string, error): all that decides about packets, in a canonical order, without numbers that
// depend on how the state was reached.
func Dump(p any) (string, error) {
	switch d := p.(type) {
	case interface{ Dump() string }:
		return d.Dump(), nil
	case interface{ Dump() (string, error) }:
		return d.Dump()
	}
	return "", errors.New("the plane has no method Dump")
}
