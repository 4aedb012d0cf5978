package listen

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"kube-proxy/test/listentest"
)

// With any number of descriptors, the shares of others leave the process its own.
func TestShare(t *testing.T) {
	for _, files := range []uint64{0, 1, 200, 256, 300, 1024, 4096, 1 << 20, 1 << 62, ^uint64(0)} {
		s := shareOf(files)
		if s.Connections < leastFiles || s.Connections > maxConnections || s.Listeners < leastFiles {
			t.Errorf("%d files: %+v", files, s)
		}
		if files >= 256 && uint64(3*s.Connections+s.Listeners+ownFiles) > files {
			t.Errorf("%d files: %+v leaves less than %d", files, s, ownFiles)
		}
	}
}

// One listener too many is refused, with the limit that keeps it from being opened; one that closes
// makes room, once.
func TestLimited(t *testing.T) {
	var o listentest.Opener
	open := Share{Files: 77, Listeners: 2}.Limited(func(ctx context.Context, p Address) (net.Listener, error) {
		return o.Open(ctx, p.Network, p.At)
	})
	at := func(port uint16) Address {
		return Address{"tcp", netip.AddrPortFrom(netip.IPv4Unspecified(), port)}
	}
	must := func(port uint16) net.Listener {
		t.Helper()
		l, err := open(t.Context(), at(port))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := must(1)
	o.Refuse("", "in use")
	if _, err := open(t.Context(), at(2)); err == nil {
		t.Fatal("opened though it is in use")
	}
	o.Refuse("", "")
	must(2)
	if _, err := open(t.Context(), at(3)); err == nil || !strings.Contains(err.Error(), "2 listeners are open") ||
		!strings.Contains(err.Error(), "77 files") {
		t.Errorf("a third listener: %v", err)
	}
	first.Close()
	first.Close()
	must(3)
	if _, err := open(t.Context(), at(4)); err == nil {
		t.Error("a listener that is closed twice makes room for two")
	}
}
