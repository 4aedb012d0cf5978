package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// ConnectTimes connects from a host to each of the IPv4 addresses in turn, rounds times, and
// returns the durations of the connect system call, by address. A connection is reset at once, so
// that ports do not run out.
func (b *Bed) ConnectTimes(ctx context.Context, host string, to []netip.AddrPort, rounds int) ([][]time.Duration,
	error) {
	took := make([][]time.Duration, len(to))
	err := b.Lab.Do(host, func() error {
		for range rounds {
			for i, addr := range to {
				if err := ctx.Err(); err != nil {
					return err
				}
				t, err := connectTime(addr)
				for errors.Is(err, unix.EINTR) { // by a signal of Go's scheduler
					t, err = connectTime(addr)
				}
				if err != nil {
					return fmt.Errorf("connect from %s to %s: %w", host, addr, err)
				}
				took[i] = append(took[i], t)
			}
		}
		return nil
	})
	return took, err
}

func connectTime(to netip.AddrPort) (took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 3}); err != nil {
		return 0, err
	}
	begin := time.Now()
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	return time.Since(begin), err
}
