//go:build !linux

package probe

import (
	"context"
	"errors"
	"net"
	"syscall"

	"kube-proxy/failover"
)

// begin connects once, and sends what comes of it: Unknown if that is nothing when ctx ends.
// Without the error queue of Linux no error proves a missing route.
func begin(ctx context.Context, p failover.Probe, results chan<- failover.Result) error {
	go func() {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.At.String())
		switch {
		case err == nil:
			c.Close()
			results <- failover.Answers
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, connRefused):
			results <- failover.Refuses
		case ctx.Err() != nil:
			results <- failover.Unknown
		default:
			results <- failover.Silent
		}
	}()
	return nil
}

// connRefused is WSAECONNREFUSED of Windows.
const connRefused = syscall.Errno(10061)
