package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsupported is wrapped by errors that say that the kernel lacks something, however often it is asked.
// Planes report it as plane.ErrUnsupported.
var ErrUnsupported = errors.New("not supported by this kernel")

// NFTables returns nil if the kernel has nf_tables and lets this process use it. Otherwise the error wraps
// ErrUnsupported (no nf_tables) or fs.ErrPermission (no CAP_NET_ADMIN here), or is an error of the socket.
//
// The question makes a kernel that has the module but has not loaded it do so.
func NFTables() error {
	errno, err := askNFTablesGeneration()
	if err != nil {
		return fmt.Errorf("probe nf_tables: %w", err)
	}
	return nftablesAnswer(errno)
}

// nftablesAnswer says what the kernel's answer to a question for nf_tables' generation means.
func nftablesAnswer(errno unix.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EPERM:
		return fmt.Errorf("nf_tables needs root, or the capability NET_ADMIN in this network namespace: %w", errno)
	case unix.EINVAL, unix.EOPNOTSUPP: // nfnetlink knows no such subsystem, and no module brought it
		return fmt.Errorf("%w: nf_tables is missing (the module nf_tables of Linux 5.10 or later, CONFIG_NF_TABLES)", ErrUnsupported)
	}
	return fmt.Errorf("probe nf_tables: %w", errno)
}

// askNFTablesGeneration sends NFT_MSG_GETGEN and returns the error that the kernel answers with, 0 for a
// real answer.
func askNFTablesGeneration() (unix.Errno, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return 0, fmt.Errorf("%w: netfilter's netlink is missing (CONFIG_NETFILTER_NETLINK)", ErrUnsupported)
	}
	if err != nil {
		return 0, fmt.Errorf("open a netfilter socket: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(5 * time.Second)) // loading a module takes a moment
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return 0, fmt.Errorf("limit the wait for an answer: %w", err)
	}

	const length = unix.SizeofNlMsghdr + 4 // and struct nfgenmsg
	ask := make([]byte, length)
	binary.NativeEndian.PutUint32(ask[0:], length)
	binary.NativeEndian.PutUint16(ask[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
	binary.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST)
	ask[16] = unix.AF_UNSPEC
	if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask: %w", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return 0, fmt.Errorf("wait for an answer: %w", err)
	}
	return answerError(answer[:n])
}

// answerError returns the error number in a netlink message, 0 if it is not an error.
func answerError(msg []byte) (unix.Errno, error) {
	if len(msg) < unix.SizeofNlMsghdr {
		return 0, fmt.Errorf("answer of %d bytes is shorter than a header", len(msg))
	}
	if binary.NativeEndian.Uint16(msg[4:]) != unix.NLMSG_ERROR {
		return 0, nil
	}
	if len(msg) < unix.SizeofNlMsghdr+4 {
		return 0, fmt.Errorf("error of %d bytes without a number", len(msg))
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(msg[unix.SizeofNlMsghdr:]))), nil
}
