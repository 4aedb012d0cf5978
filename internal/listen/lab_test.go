package listen

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kube-proxy/test/listentest"
)

// fake opens listeners that no client can reach, and fails on demand.
type fake struct{ listentest.Opener }

func (f *fake) listen(ctx context.Context, p Address) (net.Listener, error) {
	return f.Open(ctx, p.Network, p.At)
}

// did returns the events since the last call: opened, closed, reported.
func (f *fake) did() string { return strings.Join(f.Did(), ", ") }

// acceptOnly accepts connections without serving them, until the listener ends.
func acceptOnly(l net.Listener) error {
	_, err := l.Accept()
	return err
}

// pass advances the fake clock, and waits for the results.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// addresses are made from words as "tcp4 192.0.2.1:80".
func addresses(t *testing.T, words string) []Address {
	t.Helper()
	f := strings.Fields(words)
	var out []Address
	for i := 0; i+1 < len(f); i += 2 {
		out = append(out, Address{f[i], netip.MustParseAddrPort(f[i+1])})
	}
	return out
}
