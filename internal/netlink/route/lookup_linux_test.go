package route

import (
	"net/netip"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink"
)

// TestLegs counts the next hops of a route, as ip-route(8) makes them (NT-14).
func TestLegs(t *testing.T) {
	netlab.EnterForTest(t)
	out, err := exec.Command("sh", "-ec", `ip link add d0 type veth peer name e0
ip link set d0 up
ip link set e0 up
ip addr add 192.0.2.2/24 dev d0
ip addr add 2001:db8::2/64 dev d0 nodad
ip route add 198.51.100.0/24 nexthop via 192.0.2.8 nexthop via 192.0.2.9
ip route add 203.0.113.0/24 via 192.0.2.8
ip -6 route add 2001:db8:1::/64 nexthop via 2001:db8::8 nexthop via 2001:db8::9 nexthop via 2001:db8::a
ip nexthop add id 1 via 192.0.2.8 dev d0
ip nexthop add id 2 via 192.0.2.9 dev d0
ip nexthop add id 3 group 1/2
ip route add 198.18.0.0/24 nhid 3`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for to, want := range map[string]int{"198.51.100.1": 2, "203.0.113.1": 1, "2001:db8:1::1": 3, "2001:db8::7": 1,
		"198.18.0.1": 2, "192.0.2.2": 1, "10.0.0.1": 0, "2001:db8:7::1": 0} {
		n, err := Legs(t.Context(), conn, Query{To: netip.MustParseAddr(to)})
		if err != nil || n != want {
			t.Errorf("%s has %d next hops, %v; want %d", to, n, err, want)
		}
	}
}
