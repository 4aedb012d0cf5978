//go:build !windows

package hns

import (
	"fmt"
	"runtime"

	"kube-proxy/plane"
)

// open returns the HNS of this machine.
func open() (HNS, error) {
	return nil, fmt.Errorf("hns: the Host Networking Service needs Windows, not %s: %w", runtime.GOOS, plane.ErrUnsupported)
}
