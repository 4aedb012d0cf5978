//go:build !windows

package hns

import (
	"fmt"
	"runtime"

	"kube-proxy/plane"
)

// open returns the HNS of this machine.
func open() (HNS, error) {
	return nil, fmt.Errorf("hns: the Host Networking Service is a part of Windows, this is %s: %w", runtime.GOOS, plane.ErrUnsupported)
}
