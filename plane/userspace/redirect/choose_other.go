//go:build !linux && !windows

package redirect

import (
	"context"
	"errors"

	"kube-proxy/lb"
	"kube-proxy/mode"
)

// Choose has nothing to choose: other systems run the commands that ask a proxy elsewhere, and no
// proxy.
func Choose(Config) (c Redirector, passed []error, err error) { return nil, nil, errors.ErrUnsupported }

// Remove removes nothing, as nothing was added.
func Remove(context.Context, []lb.Family, string) (report mode.Report, err error) { return report, nil }
