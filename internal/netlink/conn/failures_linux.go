package conn

import "fmt"

// Failures are what failed of many operations of one call.
type Failures struct {
	// Failed is told of each, with the position of the operation; nil for none.
	Failed func(i int, err error)

	number int
	first  error
}

// Add notes that an operation failed.
func (f *Failures) Add(i int, err error) {
	if f.number++; f.first == nil {
		f.first = err
	}
	if f.Failed != nil {
		f.Failed(i, err)
	}
}

// Err returns the first that was added, with how many more of all failed; nil if none did.
func (f *Failures) Err(all int) error {
	if f.number > 1 {
		return fmt.Errorf("%w; and %d more of %d failed", f.first, f.number-1, all)
	}
	return f.first
}
