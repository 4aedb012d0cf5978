//go:build !linux

package userspace

import (
	"context"
	"fmt"
	"runtime"

	"kube-proxy/lb"
	"kube-proxy/mode"
	"kube-proxy/plane"
	"kube-proxy/plane/userspace/capture"
)

// chooseCapture knows no capture of this system.
func chooseCapture(capture.Config) (capture.Capture, []error, error) {
	return nil, nil, fmt.Errorf("capture packets to service addresses on %s: %w", runtime.GOOS, plane.ErrUnsupported)
}

// removeCaptures: what a capture of this system leaves is not known.
var removeCaptures func(context.Context, []lb.Family, string) (mode.Report, error)
