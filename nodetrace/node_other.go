//go:build !linux

package nodetrace

import (
	"context"
	"errors"
	"time"

	"kube-proxy/trace"
)

// Ask follows packets on Linux only; the error is errors.ErrUnsupported.
func Ask(context.Context, Question) (trace.Node, error) {
	return trace.Node{}, errors.ErrUnsupported
}

// Live follows packets on Linux only.
func Live(context.Context, trace.Packet, time.Duration) (trace.Live, error) {
	return trace.Live{}, errors.New("follow a real packet: not available on this system")
}

// Kernel follows packets on Linux only.
func Kernel(context.Context, any, trace.Packet) (trace.Kernel, error) {
	return trace.Kernel{}, errors.New("not available on this system")
}
