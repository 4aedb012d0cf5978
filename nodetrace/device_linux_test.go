package nodetrace

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/trace"
)

// TestSmallMTU warns of packets that are too large for the interface of the backend or of the
// client, and sends some (NT-02).
func TestSmallMTU(t *testing.T) {
	for _, c := range []struct {
		device  string // with an MTU of 1400 bytes; "" for none
		six     bool
		warning string
	}{
		{"", false, ""},
		{"vethpod2", false, "do not fit from vethpod1 (MTU 1500) to vethpod2 (MTU 1400)"},
		{"vethpod2", true, "do not fit from vethpod1 (MTU 1500) to vethpod2 (MTU 1400)"},
		{"vethpod1", false, "do not fit from vethpod2 (MTU 1500) to vethpod1 (MTU 1400)"},
	} {
		t.Run(fmt.Sprintf("%s, six %v", c.device, c.six), func(t *testing.T) {
			t.Parallel()
			lab := netlab.ForTest(t, netlab.Options{})
			pod1, _ := netlab.HostByName("pod1")
			pod2, _ := netlab.HostByName("pod2")
			lab.On(netlab.Node1, func() {
				if c.device != "" {
					if err := runs("ip link set " + c.device + " mtu 1400")(); err != nil {
						t.Fatal(err)
					}
				}
				n, err := Follow(t.Context(), Question{Packet: trace.Packet{Proto: lb.TCP,
					From: netip.AddrPortFrom(pod1.Addr(c.six), 0), To: netip.AddrPortFrom(pod2.Addr(c.six), 8080),
				}, OnNode: onNode1}, open{})
				if err != nil || n.Verdict != trace.Delivered || (len(n.Warnings) > 0) != (c.warning != "") ||
					!strings.Contains(strings.Join(n.Warnings, ""), c.warning) {
					t.Errorf("%s, %q (%v); want %q", n.Verdict, n.Warnings, err, c.warning)
				}
			})
			from, to := pod1, pod2
			if c.device == "vethpod1" { // the reply is too large
				from, to = pod2, pod1
			}
			for size, fits := range map[int]bool{1300: true, 1420: c.device == ""} {
				lab.On(from.Name, func() {
					err := sendWhole(to.Addr(c.six), size)
					if fits != (err == nil) || !fits && !errors.Is(err, unix.EMSGSIZE) {
						t.Errorf("a datagram of %d bytes: %v", size, err)
					}
				})
			}
		})
	}
}

// sendWhole sends datagrams that no router may divide until one of them fails, for at most 300 ms.
func sendWhole(to netip.Addr, size int) error {
	family, level, discover := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: 9, Addr: [4]byte(to.AsSlice()[:4])}
	if to.Is6() {
		family, level, discover = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
		sa = &unix.SockaddrInet6{Port: 9, Addr: to.As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = errors.Join(unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO), unix.Connect(fd, sa))
	if err != nil {
		return err
	}
	for range 6 {
		if err := unix.Send(fd, bytes.Repeat([]byte{'x'}, size), 0); err != nil && err != unix.ECONNREFUSED {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// TestARP has the node hold an address of a load balancer, as mode ipvs does, and asks for it on
// the LAN: trace warns exactly if the node answers (NT-03).
func TestARP(t *testing.T) {
	const vip = "192.0.2.9"
	client, _ := netlab.HostByName("client")
	for _, c := range []struct {
		all, eth0, filter string
		answers           bool
	}{
		{"0", "0", "0", true}, {"1", "0", "0", false}, {"0", "1", "0", false}, {"2", "0", "0", false},
		{"3", "0", "0", true}, {"0", "8", "0", false}, {"0", "0", "1", true},
	} {
		t.Run("arp_ignore "+c.all+" "+c.eth0+", arp_filter "+c.filter, func(t *testing.T) {
			t.Parallel()
			lab := netlab.ForTest(t, netlab.Options{})
			var n trace.Node
			lab.On(netlab.Node1, func() {
				err := errors.Join(runs("ip addr add "+vip+" dev lo")(),
					sysctls("ipv4/conf/all/arp_ignore", c.all, "ipv4/conf/eth0/arp_ignore", c.eth0,
						"ipv4/conf/eth0/arp_filter", c.filter)())
				if err != nil {
					t.Fatal(err)
				}
				n, err = Follow(t.Context(), Question{Packet: trace.Packet{In: "eth0", Proto: lb.TCP,
					From: netip.AddrPortFrom(client.V4, 0), To: netip.MustParseAddrPort(vip + ":80")},
					Mode:  trace.Mode{Holds: true},
					Table: trace.Answer{Frontend: &lb.Frontend{Kind: lb.LoadBalancer}, Verdict: trace.Pass}}, open{})
				if err != nil {
					t.Fatal(err)
				}
			})
			warns := slices.ContainsFunc(n.Warnings, func(s string) bool {
				return strings.HasPrefix(s, "This node answers ARP for "+vip+" on eth0")
			})
			if warns != c.answers {
				t.Errorf("warnings %q, want one: %v", n.Warnings, c.answers)
			}
			none := strings.HasPrefix(strings.Join(n.Warnings, ""), "This node answers no ARP")
			if none != (c.eth0 == "8") {
				t.Errorf("warnings %q", n.Warnings)
			}
			lab.On("client", func() {
				if got := answered(t, vip); got != c.answers {
					t.Errorf("the node answers: %v, want %v", got, c.answers)
				}
			})
		})
	}
}

// answered reports whether another host of the LAN answers ARP for an address.
func answered(t *testing.T, addr string) bool {
	t.Helper()
	if err := runs("ip route replace " + addr + " dev eth0")(); err != nil {
		t.Fatal(err)
	}
	if err := sendWhole(netip.MustParseAddr(addr), 10); err != nil && !errors.Is(err, unix.EHOSTUNREACH) {
		t.Fatal(err)
	}
	all, err := netlink.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(all, func(n netlink.Neigh) bool {
		return n.IP.String() == addr && n.HardwareAddr != nil
	})
}
