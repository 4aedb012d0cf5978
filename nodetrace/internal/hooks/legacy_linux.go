package hooks

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// layout is where things are in the kernel's rules of iptables-legacy (struct ipt_entry and struct
// ip6t_entry), and how to ask for them.
type layout struct {
	names        string // of the tables that exist
	domain       int
	level        int
	targetOffset int // of the offset of a rule's target
	size         int // of a rule without matches
}

var layouts = map[lb.Family]layout{
	lb.IPv4: {"ip_tables_names", unix.AF_INET, unix.IPPROTO_IP, 88, 112},
	lb.IPv6: {"ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6, 140, 168},
}

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	name           [32]byte
	valid          uint32
	first, last    [5]uint32 // offsets of a hook's first rule, and of its policy
	entries, bytes uint32
}

// maxLegacy is the size of the largest table that is read, in bytes.
const maxLegacy = 64 << 20

// legacyFilled returns the hooks at which tables of iptables-legacy have rules, or a policy that
// drops, with the name of one such table. The kernel answers with CAP_NET_ADMIN alone, which does
// not suffice for the program iptables-legacy.
func legacyFilled(f lb.Family) (map[Hook]string, error) {
	l := layouts[f]
	names, err := os.ReadFile("/proc/thread-self/net/" + l.names)
	if err != nil {
		return nil, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	fd, err := unix.Socket(l.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	filled := map[Hook]string{}
	for _, name := range strings.Fields(string(names)) {
		const getInfo, getEntries = 64, 65 // IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES
		var info tableInfo
		copy(info.name[:], name)
		whole := unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))
		if err := getsockopt(fd, l.level, getInfo, whole); err != nil {
			return nil, fmt.Errorf("ask for table %s of iptables-legacy: %w", name, err)
		}
		if info.bytes > maxLegacy {
			return nil, fmt.Errorf("table %s of iptables-legacy has %d bytes", name, info.bytes)
		}
		const header = 40 // struct ipt_get_entries
		rules := make([]byte, header+int(info.bytes))
		copy(rules, name)
		nlconn.Order.PutUint32(rules[32:], info.bytes)
		if err := getsockopt(fd, l.level, getEntries, rules); err != nil {
			return nil, fmt.Errorf("read table %s of iptables-legacy: %w", name, err)
		}
		for h := Prerouting; h <= Postrouting; h++ {
			if info.valid>>h&1 != 0 && (info.first[h] != info.last[h] || !l.accepts(rules[header:], info.last[h])) {
				filled[h] = name
			}
		}
	}
	return filled, nil
}

// accepts reports whether the rule at an offset is a policy that accepts.
func (l layout) accepts(rules []byte, at uint32) bool {
	const verdict, accept = 32, -2 // of struct xt_standard_target, -NF_ACCEPT-1
	if int(at)+l.size > len(rules) {
		return false
	}
	target := int(at) + int(nlconn.Order.Uint16(rules[int(at)+l.targetOffset:])) + verdict
	return target+4 <= len(rules) && int32(nlconn.Order.Uint32(rules[target:])) == accept
}

// getsockopt passes a buffer that the kernel reads and fills.
func getsockopt(fd, level, option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
}
