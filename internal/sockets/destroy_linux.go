package sockets

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// Connected names a connected socket. Family is AF_INET or AF_INET6; an IPv6 socket may have mapped
// IPv4 addresses. Cookie is the kernel's number of the socket, because several may have the same
// addresses; 0 means any of them.
type Connected struct {
	Cookie   uint64
	Family   uint8
	Proto    lb.Proto
	From, To netip.AddrPort
}

const sockDestroy = 21 // SOCK_DESTROY of linux/sock_diag.h

// Destroy ends connected sockets of the calling thread's network namespace: the next call of their
// programs fails with ECONNABORTED. It returns how many it ended; a socket that no longer exists is
// no error, nor is another one with its addresses, which stays. The kernel needs
// CONFIG_INET_DIAG_DESTROY.
func Destroy(ctx context.Context, all []Connected) (ended int, err error) {
	conn, err := netlink.Open(netlink.Config{Protocol: unix.NETLINK_SOCK_DIAG})
	if err != nil {
		return 0, fmt.Errorf("sockets: %w", err)
	}
	defer conn.Close()
	for _, s := range all {
		err := conn.Do(ctx, netlink.Request(sockDestroy, unix.NLM_F_ACK, s.request()), nil)
		switch {
		case err == nil:
			ended++
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE):
			return ended, fmt.Errorf("sockets: end the %s socket %s → %s: %w", s.Proto, s.From, s.To, err)
		}
	}
	return ended, nil
}

func (s Connected) request() []byte {
	b := request(s.Family, s.Proto)
	binary.NativeEndian.PutUint32(b[4:], 0xffffffff) // in any state
	binary.BigEndian.PutUint16(b[8:], s.From.Port())
	binary.BigEndian.PutUint16(b[10:], s.To.Port())
	copy(b[12:28], s.bytes(s.From.Addr()))
	copy(b[28:44], s.bytes(s.To.Addr()))
	if s.Cookie != 0 {
		binary.NativeEndian.PutUint32(b[48:], uint32(s.Cookie))
		binary.NativeEndian.PutUint32(b[52:], uint32(s.Cookie>>32))
	}
	return b
}

func (s Connected) bytes(a netip.Addr) []byte {
	if s.Family == unix.AF_INET {
		return a.Unmap().AsSlice()
	}
	b := a.As16()
	return b[:]
}

// CanDestroy is an error if the kernel ends no sockets.
func CanDestroy(ctx context.Context) error {
	unused := netip.MustParseAddrPort("127.0.0.1:1") // which no UDP socket has as both ends
	_, err := Destroy(ctx, []Connected{{Family: unix.AF_INET, Proto: lb.UDP, From: unused, To: unused}})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("sockets: the kernel ends no sockets (CONFIG_INET_DIAG_DESTROY): %w", err)
	}
	return err
}
