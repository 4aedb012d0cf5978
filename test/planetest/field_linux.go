package planetest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/lb"
	"kube-proxy/test/scenario"
)

// Ports are the ports on which every host of the lab answers, in every protocol.
var Ports = []uint16{8080, 8081, 8082}

// field is a lab with responders on every host. One scenario uses it at a time.
type field struct {
	opts netlab.Options
	lab  *netlab.Lab
	held []netip.Prefix // extra addresses of node1 at present
	// leads: node1 has host ports now.
	leads bool
	// noSCTP: this kernel has no SCTP sockets.
	noSCTP bool
	// silence is the time without an answer after which a packet counts as dropped.
	silence time.Duration
	port    atomic.Uint32
}

// pool lends labs, so that a run needs only as many as tests run at the same time.
type pool struct {
	mu   sync.Mutex
	free []*field
	all  []*field
}

func (p *pool) get(opts netlab.Options) (*field, error) {
	p.mu.Lock()
	for i, f := range p.free {
		if f.opts == opts {
			p.free = append(p.free[:i:i], p.free[i+1:]...)
			p.mu.Unlock()
			return f, nil
		}
	}
	p.mu.Unlock()
	f, err := newField(opts)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, f)
	return f, nil
}

func (p *pool) put(f *field) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, f)
}

func (p *pool) close() error {
	var errs []error
	for _, f := range p.all {
		errs = append(errs, f.lab.Close())
	}
	return errors.Join(errs...)
}

func newField(opts netlab.Options) (*field, error) {
	l, err := netlab.New(opts)
	if err != nil {
		return nil, err
	}
	f := &field{opts: opts, lab: l}
	// A proxy connects to backends from ports that are neither clients' (nextPort) nor NodePorts.
	partPorts := func() error { return l.LocalPorts(netlab.Node1, 10000, 29999) }
	for _, step := range []func() error{partPorts, f.listen, f.lab.BaitSink, f.calibrate} {
		if err := step(); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return f, nil
}

// listen starts the responders, but for the sink's.
func (f *field) listen() error {
	for _, h := range f.lab.Hosts() {
		if h.Name == netlab.Sink {
			continue
		}
		for _, proto := range []netlab.Proto{netlab.TCP, netlab.UDP, netlab.SCTP} {
			for _, port := range Ports {
				_, err := f.lab.Listen(h.Name, proto, port)
				if proto == netlab.SCTP && errors.Is(err, netlab.ErrUnsupported) {
					f.noSCTP = true
					break
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// expect makes the sink answer the next packets, if they reach it.
func (f *field) expect(shots []scenario.Shot) error {
	for _, s := range shots {
		if !lb.Within(netlab.ServiceRanges(), s.To.Addr()) || s.Proto == 0 || s.Proto == lb.SCTP && f.noSCTP {
			continue
		}
		if err := f.lab.BaitPort(netlab.Proto(s.Proto.String()), s.To.Port()); err != nil {
			return err
		}
	}
	return nil
}

// inHost runs fn with netlink sockets in a host's namespace.
func (f *field) inHost(host string, fn func(h *netlink.Handle) error) error {
	ns, err := f.lab.Namespace(host)
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", host, err)
	}
	defer h.Close()
	return fn(h)
}

func (f *field) calibrate() (err error) {
	f.silence, err = f.lab.Silence(Ports[0])
	return err
}

// nextPort returns a source port that was not used lately, so that no flow is taken for an older
// one.
func (f *field) nextPort() uint16 { return uint16(33000 + f.port.Add(1)%32000) }

// prepare forgets all flows and gives node1 its extra addresses and host ports.
func (f *field) prepare(s scenario.Settings) error {
	if err := f.lead(s.HostPorts); err != nil {
		return err
	}
	return f.inHost(netlab.Node1, func(h *netlink.Handle) error {
		if err := h.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			return fmt.Errorf("forget all flows of node1: %w", err)
		}
		for _, p := range f.held {
			if err := hold(h, p, false); err != nil {
				return err
			}
		}
		f.held = nil
		for _, p := range s.NodeHolds {
			if err := hold(h, p, true); err != nil {
				return err
			}
			f.held = append(f.held, p)
		}
		return nil
	})
}

// lead makes node1 translate these ports, and no others, in a table separate from the plane's.
func (f *field) lead(ports []scenario.HostPort) error {
	if len(ports) == 0 && !f.leads {
		return nil
	}
	rules := ""
	for _, p := range ports {
		family, ip := "ipv4", "ip"
		if p.To.Addr().Is6() {
			family, ip = "ipv6", "ip6"
		}
		rules += fmt.Sprintf("meta nfproto %s fib daddr type local tcp dport %d dnat %s to %s;", family, p.Port, ip,
			p.To)
	}
	nft := f.lab.Command(netlab.Node1, "nft", "-f", "-")
	nft.Stdin = strings.NewReader(fmt.Sprintf(`table inet hostports; delete table inet hostports; table inet hostports {
		chain prerouting { type nat hook prerouting priority -101; %[1]s }
		chain output { type nat hook output priority -101; %[1]s }
	}`, rules))
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("host ports of node1: %w: %s", err, out)
	}
	f.leads = len(ports) > 0
	return nil
}

// hold makes an address the host's, or takes it away. A whole range becomes local by a route.
func hold(h *netlink.Handle, p netip.Prefix, add bool) error {
	ipnet := ipNet(p)
	var err error
	if p.IsSingleIP() {
		err = holdAddr(h, ipnet, add)
	} else {
		err = holdRange(h, ipnet, add)
	}
	if err == nil && add {
		err = waitLocal(h, ipnet.IP)
	}
	if err != nil {
		return fmt.Errorf("hold address %s: %w", p, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func holdAddr(h *netlink.Handle, ipnet *net.IPNet, add bool) error {
	link, err := h.LinkByName(netlab.Uplink)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipnet, Flags: unix.IFA_F_NODAD}
	if add {
		return h.AddrAdd(link, addr)
	}
	return h.AddrDel(link, addr)
}

func holdRange(h *netlink.Handle, ipnet *net.IPNet, add bool) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipnet, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
		Scope: netlink.SCOPE_HOST}
	if add {
		return h.RouteAdd(route)
	}
	return h.RouteDel(route)
}

// waitLocal waits until the address is local in the kernel: for IPv6 that is a moment after the
// request.
func waitLocal(h *netlink.Handle, ip net.IP) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		routes, err := h.RouteGet(ip)
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(errors.New("is not local after 20 s"), err)
		}
	}
}

// owner returns the name of the host with the address, "" without one.
func (f *field) owner(a netip.Addr) string {
	for _, p := range f.held {
		if p.Contains(a) {
			return netlab.Node1
		}
	}
	return netlab.Owner(a)
}
