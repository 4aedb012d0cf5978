//go:build !linux && !windows

package preflight

import "context"

// firewall is of Windows.
func firewall(context.Context) (f Firewall, err error) { return f, errElsewhere }
