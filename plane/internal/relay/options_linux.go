package relay

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// option is a socket option.
type option struct {
	name              string
	level, opt, value int
}

func setOptions(fd int, all ...option) error {
	for _, o := range all {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return os.NewSyscallError(o.name, err)
		}
	}
	return nil
}

// forFamily returns the option for sockets to an address, of IPv4 or IPv6.
func forFamily(a netip.Addr, v4, v6 option) option {
	if a.Is4() {
		return v4
	}
	return v6
}

// familyOf returns the address family of sockets to an address.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// mark returns the option that marks packets to backends; empty without a mark.
func (r *Relay) mark() []option {
	if r.cfg.Mark == 0 {
		return nil
	}
	return []option{{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK, int(r.cfg.Mark)}}
}

// maxSessionFiles bounds the descriptors of sessions.
func maxSessionFiles() int { return OpenFiles() }
