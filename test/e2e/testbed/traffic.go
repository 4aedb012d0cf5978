package testbed

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"kube-proxy/internal/netlab"
)

// Dial connects from a host, to any program. The address must be an IP address and a port.
func (b *Bed) Dial(ctx context.Context, host, network, address string) (conn net.Conn, err error) {
	err = b.Lab.Do(host, func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Ask connects from a host to a pod or a Service within a time, and returns the name of the server.
func (b *Bed) Ask(host string, to netip.AddrPort, limit time.Duration) (string, error) {
	reply, err := b.Lab.Dial(host, netlab.TCP, to, netlab.DialOptions{Timeout: limit})
	return reply.Server, err
}

// Await connects until the server is one of want, and returns the time that took, to a few
// milliseconds while that is short.
func (b *Bed) Await(ctx context.Context, host string, to netip.AddrPort, limit time.Duration,
	want ...string) (time.Duration, error) {
	start := time.Now()
	for {
		// No server may answer at first. So each attempt is short, but the longer the wait, the
		// more likely it is that the machine is slow.
		waited := time.Since(start)
		name, err := b.Ask(host, to, min(5*time.Millisecond+waited/4, 500*time.Millisecond))
		if err == nil {
			if slices.Contains(want, name) {
				return time.Since(start), nil
			}
			err = fmt.Errorf("%s answered", name)
		}
		if waited > limit || ctx.Err() != nil {
			return 0, fmt.Errorf("%s to %s is not answered by %v within %v: %w", host, to, want, limit, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// StartTraffic starts a loop of short connections and a long one, with rests: the API server shares
// the processors.
func (b *Bed) StartTraffic(host string, to netip.AddrPort) (*netlab.Traffic, error) {
	b.ways++
	return b.Lab.StartTraffic(netlab.Way{From: host, To: to, Port: uint16(20000 + 2000*(b.ways%5)), Rest: 4})
}
