package ipset

import "errors"

var (
	// ErrUnsupported is wrapped by errors about a feature of ipsets that this kernel lacks.
	ErrUnsupported = errors.New("not supported by the kernel")
	// ErrNoSet is wrapped by errors about a set that does not exist.
	ErrNoSet = errors.New("no such set")
	// ErrInUse is wrapped by errors about a set that rules or other sets use, or that is being
	// listed.
	ErrInUse = errors.New("rules use it")
	// ErrFull is wrapped by errors of members that a set has no room for.
	ErrFull = errors.New("the set is full")
	// ErrOther is wrapped by errors about a set of that name and another kind that cannot be
	// replaced.
	ErrOther = errors.New("a different set has the name")
)
