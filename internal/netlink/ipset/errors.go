package ipset

import "errors"

var (
	// ErrUnsupported is wrapped by errors that say what of ipsets this kernel lacks.
	ErrUnsupported = errors.New("the kernel cannot do it")
	// ErrNoSet is wrapped by errors about a set that does not exist.
	ErrNoSet = errors.New("there is no such set")
	// ErrInUse is wrapped by errors about a set that rules or other sets refer to, or that somebody lists at the moment.
	ErrInUse = errors.New("rules use it")
	// ErrFull is wrapped by errors of members that a set has no room for.
	ErrFull = errors.New("the set is full")
	// ErrOther is wrapped by errors about a set of a name of ours that is another, and cannot be replaced.
	ErrOther = errors.New("the set is another")
)
