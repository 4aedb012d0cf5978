//go:build linux

package ebpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/thread"
)

// nested is a network namespace that a program on node1 made, in the cgroup of the lab.
type nested struct {
	b      *bench
	handle netns.NsHandle
}

// nest makes a network namespace without any network, which ends with the test.
func (b *bench) nest() *nested {
	b.t.Helper()
	n := &nested{b: b}
	n.b.thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var err error
		if n.handle, err = netns.Get(); err != nil {
			return err
		}
		return setUp("lo")
	})
	b.t.Cleanup(func() { n.handle.Close() })
	return n
}

// thread runs f on a thread of its own in the cgroup of the lab.
func (b *bench) thread(f func() error) {
	b.t.Helper()
	var err error
	thread.Own(func() {
		tid := fmt.Sprint(unix.Gettid())
		err = errors.Join(os.WriteFile(b.Cgroup(netlab.Node1)+"/cgroup.threads", []byte(tid), 0), f())
	})
	b.must(err)
}

func (n *nested) on(f func() error) {
	n.b.t.Helper()
	n.b.thread(func() error { return errors.Join(netns.Set(n.handle), f()) })
}

// answer returns who answers a call of the namespace.
func (n *nested) answer(c caller, to netip.AddrPort) (server string) {
	n.b.t.Helper()
	n.on(func() error {
		server = c.call(to)
		return nil
	})
	return server
}

// under leads the namespace to that of a host: what it sends goes through a pair of devices, of
// which the host's end has the name. The namespace's has the address, and all its routes.
func (n *nested) under(host, name string, addr netip.Addr) {
	n.b.t.Helper()
	n.b.On(host, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(n.handle)}
		n.b.must(errors.Join(netlink.LinkAdd(pair), setUp(name)))
		far, err := netlink.LinkByName(name)
		n.b.must(err)
		n.b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: far.Attrs().Index, Dst: whole(addr)}))
		n.on(func() error {
			return errors.Join(setUp("eth0"), give("eth0", addr), leadTo(addr, far.Attrs().HardwareAddr))
		})
	})
}

// forward has a pod forward what it gets for an address inside it, which the node sends there.
func (b *bench) forward(pod string, inner netip.Addr) {
	b.t.Helper()
	b.On(pod, func() {
		for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			b.must(os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0))
		}
	})
	b.On(netlab.Node1, func() {
		link, err := netlink.LinkByName(netlab.PodInterfacePrefix + pod[len("pod"):])
		b.must(err)
		b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: whole(inner),
			Gw: netlab.Addr(pod, inner.Is6()).AsSlice(), Flags: int(netlink.FLAG_ONLINK)}))
	})
}

// leadTo sends all that a namespace sends to the device with that hardware address.
func leadTo(of netip.Addr, far net.HardwareAddr) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	gateway, everywhere := net.IP{169, 254, 1, 1}, &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if of.Is6() {
		gateway, everywhere = net.ParseIP("fe80::1"), &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	family := map[bool]int{true: unix.AF_INET, false: unix.AF_INET6}[of.Is4()]
	return errors.Join(
		netlink.NeighAdd(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
			IP: gateway, HardwareAddr: far}),
		netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Dst: everywhere, Gw: gateway,
			Flags: int(netlink.FLAG_ONLINK)}))
}

// give adds an address to a device of the calling thread's namespace.
func give(device string, addr netip.Addr) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: whole(addr), Flags: unix.IFA_F_NODAD})
}

func setUp(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// whole is the prefix of an address alone.
func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// serve answers calls of a port in the namespace with a name, until the test ends.
func (n *nested) serve(port int, name string) {
	n.b.t.Helper()
	n.on(func() error {
		at := fmt.Sprintf(":%d", port)
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		u, err := net.ListenPacket("udp", at)
		if err != nil {
			return err
		}
		n.b.t.Cleanup(func() { l.Close(); u.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(c, name, "")
				c.Close()
			}
		}()
		go func() {
			buf := make([]byte, 2048)
			for {
				_, from, err := u.ReadFrom(buf)
				if err != nil {
					return
				}
				u.WriteTo([]byte(name+" "), from)
			}
		}()
		return nil
	})
}
