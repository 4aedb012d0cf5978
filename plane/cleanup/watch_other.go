//go:build !linux

package cleanup

import (
	"context"

	"kube-proxy/lb"
)

func removeWatch(context.Context, lb.Family) (bool, error) { return false, nil }
