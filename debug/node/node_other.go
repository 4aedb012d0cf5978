//go:build !linux

package node

import (
	"context"
	"errors"

	"kube-proxy/trace"
)

// Ask follows packets on Linux only.
func Ask(context.Context, Question) (trace.Node, error) {
	return trace.Node{}, errors.New("not available on this system")
}
