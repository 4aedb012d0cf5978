//go:build !linux

package userspace

import (
	"fmt"
	"runtime"

	"kube-proxy/plane"
	"kube-proxy/plane/userspace/capture"
)

// chooseCapture knows no capture of this system.
func chooseCapture(capture.Config) (capture.Capture, []error, error) {
	return nil, nil, fmt.Errorf("capture packets to service addresses on %s: %w", runtime.GOOS, plane.ErrUnsupported)
}
