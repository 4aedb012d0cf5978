//go:build !windows

package hns

import (
	"fmt"
	"runtime"

	"kube-proxy/plane"
)

// Open returns the HNS of this machine.
func Open() (HNS, error) {
	return nil, fmt.Errorf("hns: the Host Networking Service needs Windows, not %s: %w", runtime.GOOS,
		plane.ErrUnsupported)
}
