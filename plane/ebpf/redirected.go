//go:build linux

package ebpf

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// redirected connects UDP sockets to these destinations, which sends no packet, and returns the
// first that the kernel connected elsewhere, and where; the zero value for none. By this a process
// without the right to list programs recognizes their effect. It reads the table of sockets, for
// the programs change the answer of getpeername().
func redirected(all []netip.AddrPort) (to, is netip.AddrPort, err error) {
	for _, to := range all {
		is, err := peerInKernel(to)
		if err != nil {
			return netip.AddrPort{}, netip.AddrPort{}, fmt.Errorf("connect a socket to %s: %w", to, err)
		}
		if is.IsValid() && is != to {
			return to, is, nil
		}
	}
	return netip.AddrPort{}, netip.AddrPort{}, nil
}

// peerInKernel connects a socket and returns its destination in the kernel; invalid if no route
// leads there.
func peerInKernel(to netip.AddrPort) (is netip.AddrPort, err error) {
	family, table := unix.AF_INET6, "/proc/thread-self/net/udp6"
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		family, table = unix.AF_INET, "/proc/thread-self/net/udp"
		at = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return is, err
	}
	defer unix.Close(fd)
	if unix.Connect(fd, at) != nil {
		return is, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return is, err
	}
	file, err := os.Open(table)
	if err != nil {
		return is, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		const remote, inode = 2, 9 // columns
		fields := strings.Fields(lines.Text())
		if len(fields) > inode && fields[inode] == fmt.Sprint(st.Ino) {
			return parseProcAddr(fields[remote])
		}
	}
	return is, lines.Err()
}

// parseProcAddr parses an address of /proc/net/udp: words in the host's order, then the port.
func parseProcAddr(text string) (netip.AddrPort, error) {
	addr, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(addr)
	number, e := hex.DecodeString(port)
	if err != nil || e != nil || len(words)%4 != 0 || len(number) != 2 {
		return netip.AddrPort{}, fmt.Errorf("the kernel's table of sockets has the address %q", text)
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	a, ok := netip.AddrFromSlice(words)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("the kernel's table of sockets has the address %q", text)
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(number)), nil
}
