package userspace

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routes leads by an interface that the last byte of an address says, and counts questions.
type routes struct {
	prefix        string
	routes, links int
}

func (r *routes) RouteGet(a net.IP) ([]netlink.Route, error) {
	r.routes++
	switch n := int(a[len(a)-1]); n {
	case 0:
		return nil, nil
	case 1:
		return []netlink.Route{{LinkIndex: 1, Type: unix.RTN_LOCAL}}, nil
	default:
		return []netlink.Route{{LinkIndex: 2 + n%2, Type: unix.RTN_UNICAST}}, nil
	}
}

func (r *routes) LinkByIndex(i int) (netlink.Link, error) {
	r.links++
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: i, Name: r.prefix + string(rune('0'+i))}}, nil
}

// The kernel is asked for the route to each address, and no more than once a second what an interface is called, however many
// clients come by it; a new name counts after that second (CF-33).
func TestWaysAskOnceForAnInterface(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &routes{prefix: "veth"}
		w := &ways{kernel: kernel}
		look := func() {
			t.Helper()
			for n := 1; n < 250; n++ {
				got, err := w.way(netip.AddrFrom4([4]byte{10, 1, 1, byte(n)}))
				want := kernel.prefix + "1"
				if n > 1 {
					want = kernel.prefix + string(rune('2'+n%2))
				}
				if err != nil || got.Interface != want || got.Local != (n == 1) {
					t.Fatalf("%d: %+v, %v; want %s", n, got, err, want)
				}
			}
		}
		look()
		if kernel.routes != 249 || kernel.links != 3 {
			t.Errorf("%d questions for routes and %d for interfaces, want 249 and 3", kernel.routes, kernel.links)
		}
		kernel.prefix = "cali"
		time.Sleep(nameLasts)
		look()
		if _, err := w.way(netip.MustParseAddr("10.1.1.0")); !errors.Is(err, unix.ESRCH) {
			t.Errorf("no route: %v", err)
		}
	})
}
