//go:build linux

package xtables

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
	"kube-proxy/lb"
)

// tableInfo asks the kernel about tables of iptables-legacy. As a fingerprint it reads the number
// of entries and the size of each table, without a copy of the table. It does not notice a rule
// that is replaced by another of the same size.
type tableInfo struct {
	fd    int
	level int
}

// newTableInfo opens a tableInfo and checks that the kernel has all tables, which creates them. It
// needs CAP_NET_RAW, as the programs do.
func newTableInfo(f lb.Family) (*tableInfo, error) {
	t, err := openTableInfo(f, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return nil, err
	}
	if _, err := t.now(); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func openTableInfo(f lb.Family, socket, proto int) (*tableInfo, error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == lb.IPv6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, socket|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &tableInfo{fd, level}, nil
}

func (t *tableInfo) close() { unix.Close(t.fd) }

// ask makes a query, for which the kernel reads and fills a struct of C.
func ask[T any](t *tableInfo, option int, about *T) error {
	return t.query(option, unsafe.Slice((*byte)(unsafe.Pointer(about)), unsafe.Sizeof(*about)))
}

func (t *tableInfo) query(option int, buf []byte) error {
	size := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(t.fd), uintptr(t.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// getinfo is struct ipt_getinfo, and struct ip6t_getinfo: which hooks the table has, and the offset
// of the first rule and of the policy of each.
type getinfo struct {
	name      [32]byte
	hooks     uint32
	entry     [5]uint32
	underflow [5]uint32
	entries   uint32
	size      uint32
}

func (t *tableInfo) of(table string) (info getinfo, err error) {
	const getInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	copy(info.name[:], table)
	err = ask(t, getInfo, &info)
	if err != nil {
		return info, fmt.Errorf("query the size of table %s: %w", table, err)
	}
	return info, nil
}

func (t *tableInfo) now() (fingerprint, error) {
	var out fingerprint
	for i := range Tables {
		info, err := t.of(i.String())
		if err != nil {
			return fingerprint{}, err
		}
		out[2*i], out[2*i+1] = info.entries, info.size
	}
	return out, nil
}

func (t *tableInfo) own(before fingerprint, _ int, change func() error) (fingerprint, error) {
	is, unknown := t.now()
	if err := change(); err != nil || unknown != nil || is != before {
		return fingerprint{}, err
	}
	is, unknown = t.now()
	if unknown != nil {
		return fingerprint{}, nil
	}
	return is, nil
}

// maxTable is the size of the largest table that is read for its policies, in bytes.
const maxTable = 64 << 20

// LegacyFilled returns, by hook (NF_INET_PRE_ROUTING and so on), the name of a table of
// iptables-legacy that has rules there, or a policy that drops; "" for none. It needs CAP_NET_ADMIN
// alone, unlike the programs, and the thread's network namespace.
func LegacyFilled(f lb.Family) (filled [5]string, err error) {
	names, err := legacyTables(f)
	if err != nil {
		return filled, fmt.Errorf("list the tables of iptables-legacy: %w", err)
	}
	t, err := openTableInfo(f, unix.SOCK_DGRAM, 0)
	if err != nil {
		return filled, err
	}
	defer t.close()
	for _, name := range names {
		info, err := t.of(name)
		if err != nil {
			return filled, err
		}
		rules, err := t.entries(info)
		if err != nil {
			return filled, fmt.Errorf("read table %s of iptables-legacy: %w", name, err)
		}
		for h := range filled {
			if info.hooks>>h&1 != 0 && (info.entry[h] != info.underflow[h] || !t.accepts(rules, info.underflow[h])) {
				filled[h] = name
			}
		}
	}
	return filled, nil
}

// entries reads the rules of a table (struct ipt_entry and struct ip6t_entry), end to end.
func (t *tableInfo) entries(info getinfo) ([]byte, error) {
	const getEntries, header = 65, 40 // IPT_SO_GET_ENTRIES, struct ipt_get_entries
	if info.size > maxTable {
		return nil, fmt.Errorf("it has %d bytes, and no more than %d are read", info.size, maxTable)
	}
	buf := make([]byte, header+info.size)
	copy(buf, info.name[:])
	netlink.Order.PutUint32(buf[len(info.name):], info.size)
	return buf[header:], t.query(getEntries, buf)
}

// accepts reports whether the rule at an offset is a policy that accepts.
func (t *tableInfo) accepts(rules []byte, at uint32) bool {
	const verdict, accept = 32, -2 // of struct xt_standard_target, -NF_ACCEPT-1
	target := 88                   // offsetof(struct ipt_entry, target_offset)
	if t.level == unix.SOL_IPV6 {
		target = 140
	}
	if int(at)+target+2 > len(rules) {
		return false
	}
	target = int(at) + int(netlink.Order.Uint16(rules[int(at)+target:])) + verdict
	return target+4 <= len(rules) && int32(netlink.Order.Uint32(rules[target:])) == accept
}
