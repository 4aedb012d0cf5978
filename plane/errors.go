package plane

import (
	"errors"
	"fmt"
)

// ErrUnsupported is wrapped by errors of operations that this kernel or host can never do, so
// retries are useless. The wrapping error names the missing ability and the remedy.
var ErrUnsupported = errors.New("not supported on this host")

// ErrStateLost is wrapped by errors after which the plane no longer knows what the kernel holds,
// for example when its table was deleted. Only Reset helps.
var ErrStateLost = errors.New("kernel state lost")

// ErrNotSetUp is wrapped by errors of every verb except Reset before the first Reset. It is an
// ErrStateLost.
var ErrNotSetUp = fmt.Errorf("not set up yet: %w", ErrStateLost)
