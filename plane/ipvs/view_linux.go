package ipvs

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/ipset"
	"kube-proxy/internal/netlink/ipvs"
	"kube-proxy/internal/netlink/route"
	"kube-proxy/internal/xtables"
	"kube-proxy/lb"
)

// heldChains returns the mode's rules in iptables, as [xtables.Manager.Held].
type heldChains func(context.Context) (jumps, rules []xtables.ChainRule, err error)

// openView opens a View in the network namespace of the calling thread. It changes nothing.
func openView(f lb.Family, connect func() (*ipvs.Conn, error), held heldChains) (v *View, err error) {
	var open closers
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("read the kernel: %w", err), open.Close())
		}
	}()
	servers, err := connect()
	if err != nil {
		return nil, err
	}
	open = append(open, servers)
	members, err := ipset.Open()
	if err != nil {
		return nil, err
	}
	open = append(open, members)
	device, err := openDevice(f)
	if err != nil {
		return nil, err
	}
	open = append(open, device)
	// Differences reports that
	if err := device.find(context.Background()); err != nil && !errors.Is(err, ErrNoDevice) {
		return nil, err
	}
	routes, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_ROUTE})
	if err != nil {
		return nil, err
	}
	open = append(open, routes)
	return &View{IPVS: servers, Sets: members, Device: device, Held: held, Stays: staysInKernel, Close: open.Close,
		Here: func(ctx context.Context, a netip.Addr) (bool, error) { return route.LeadsHere(ctx, routes, a) }}, nil
}

// errTooMany is the error of a search that would read more than one query may.
var errTooMany = errors.New("too many connections in the kernel to search for the client's")

// maxConnections is the part of the list of connections that is read, in bytes: some 50,000
// connections.
const maxConnections = 4 << 20

// staysInKernel looks for the template of the client in the kernel's list of connections.
func staysInKernel(_ context.Context, id ipvs.ServiceID, client netip.Addr) (netip.AddrPort, error) {
	list, err := os.Open("/proc/thread-self/net/ip_vs_conn")
	if errors.Is(err, fs.ErrNotExist) {
		return netip.AddrPort{}, nil
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the client among the connections of IPVS: %w", err)
	}
	defer list.Close()
	return staysIn(io.LimitReader(list, maxConnections), id, client)
}

// staysIn reads /proc/net/ip_vs_conn: a template has port 0 for the client's.
func staysIn(list io.Reader, id ipvs.ServiceID, client netip.Addr) (netip.AddrPort, error) {
	read, protocol := 0, strings.ToUpper(lb.Proto(id.Proto).String())
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		read += len(lines.Bytes()) + 1
		f := strings.Fields(lines.Text())
		if len(f) < 7 || f[2] != "0000" || f[0] != protocol {
			continue
		}
		from, to, by := connectionEnd(f[1], f[2]), connectionEnd(f[3], f[4]), connectionEnd(f[5], f[6])
		if from.Addr() == client && to == id.Addr && by.IsValid() {
			return by, nil
		}
	}
	if err := lines.Err(); err != nil {
		return netip.AddrPort{}, fmt.Errorf("look for the client among the connections of IPVS: %w", err)
	}
	if read >= maxConnections {
		return netip.AddrPort{}, errTooMany
	}
	return netip.AddrPort{}, nil
}

// connectionEnd reads an address and a port in hexadecimal; an IPv4 address has eight digits.
func connectionEnd(addr, port string) netip.AddrPort {
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}
	}
	a, err := netip.ParseAddr(strings.Trim(addr, "[]"))
	if err != nil {
		b, err := hex.DecodeString(addr)
		if err != nil || len(b) != 4 {
			return netip.AddrPort{}
		}
		a = netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrPortFrom(a, uint16(n))
}
