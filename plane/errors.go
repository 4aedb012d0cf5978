package plane

import (
	"errors"
	"fmt"
)

// ErrUnsupported is wrapped by errors that say that this kernel or host cannot do what is asked, however
// often it is tried. The wrapping error names the missing ability and what to do.
var ErrUnsupported = errors.New("not supported on this host")

// ErrStateLost is wrapped by errors after which the plane no longer knows what the kernel holds, for
// example when its table was deleted. Only Reset helps.
var ErrStateLost = errors.New("kernel state lost")

// ErrNotSetUp is wrapped by errors of every verb but Reset before the first Reset. It is an ErrStateLost.
var ErrNotSetUp = fmt.Errorf("not set up yet: %w", ErrStateLost)
