package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// New returns a Watcher for the network namespace of the calling thread. [Watcher.Run] closes it.
func New(cfg Config) (*Watcher, error) {
	d, err := openDiag()
	if err != nil {
		return nil, fmt.Errorf("sockets: %w", err)
	}
	return newWatcher(cfg, d), nil
}

// diag lists sockets by sock_diag.
type diag struct{ conn *netlink.Conn }

func openDiag() (*diag, error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_SOCK_DIAG})
	if err != nil {
		return nil, err
	}
	return &diag{conn}, nil
}

func (d *diag) close() { d.conn.Close() }

func (d *diag) sockets(ctx context.Context, proto lb.Proto, port uint16) ([]socket, error) {
	var out []socket
	for _, family := range []struct {
		number uint8
		name   lb.Family
	}{{unix.AF_INET, lb.IPv4}, {unix.AF_INET6, lb.IPv6}} {
		list, err := d.dump(ctx, family.number, proto, port)
		if proto == lb.SCTP && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) ||
			errors.Is(err, unix.EINVAL)) {
			continue // a kernel without this module has no such sockets, or does not list them
		}
		if err != nil {
			return nil, fmt.Errorf("sockets: list %v sockets of %s: %w", proto, family.name, err)
		}
		out = append(out, list...)
	}
	return out, nil
}

// The kernel's numbers of a socket's states, which UDP and SCTP share.
const (
	stateClose  = 7
	stateListen = 10
)

// waiting returns the state in which a socket of a protocol waits for traffic from any peer.
func waiting(proto lb.Proto) uint8 {
	if proto == lb.UDP {
		return stateClose
	}
	return stateListen
}

// The layout of inet_diag_req_v2 and inet_diag_msg.
const (
	sizeofRequest = 56
	sizeofMessage = 72
	offPort       = 4
	offAddr       = 8
	offInode      = 68
	attrV6Only    = 11 // INET_DIAG_SKV6ONLY
)

// request returns an inet_diag_req_v2 without a cookie.
func request(family uint8, proto lb.Proto) []byte {
	b := make([]byte, sizeofRequest)
	b[0], b[1] = family, uint8(proto)
	for i := 48; i < sizeofRequest; i++ {
		b[i] = 0xff
	}
	return b
}

// dump lists the sockets of one protocol and family that wait for traffic, on one port if that is
// not 0.
func (d *diag) dump(ctx context.Context, family uint8, proto lb.Proto, port uint16) ([]socket, error) {
	r := request(family, proto)
	binary.NativeEndian.PutUint32(r[4:], 1<<waiting(proto))
	binary.BigEndian.PutUint16(r[8:], port)
	return netlink.Dump(ctx, d.conn, netlink.Request(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, r),
		func(m netlink.Message) (socket, bool) { return parseMessage(m.Body, port) })
}

// parseMessage reads one socket. Dumps of some protocols ignore the port.
func parseMessage(b []byte, port uint16) (socket, bool) {
	if len(b) < sizeofMessage {
		return socket{}, false
	}
	var addr netip.Addr
	if b[0] == unix.AF_INET {
		addr = netip.AddrFrom4([4]byte(b[offAddr:]))
	} else {
		addr = netip.AddrFrom16([16]byte(b[offAddr:]))
	}
	s := socket{addr: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[offPort:])),
		inode: binary.NativeEndian.Uint32(b[offInode:])}
	s.v6only = netlink.U8(netlink.Attribute(b[sizeofMessage:], attrV6Only)) != 0
	return s, s.addr.Port() != 0 && (port == 0 || s.addr.Port() == port)
}

func (d *diag) ours() (map[uint32]struct{}, error) {
	const folder = "/proc/self/fd"
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("sockets: list this process's files: %w", err)
	}
	out := map[uint32]struct{}{}
	for _, f := range list {
		target, err := os.Readlink(folder + "/" + f.Name())
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			if n, err := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 32); err == nil {
				out[uint32(n)] = struct{}{}
			}
		}
	}
	return out, nil
}
