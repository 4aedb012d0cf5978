package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// askNetfilter sends a request without attributes to a subsystem of netfilter, and returns the error that the kernel
// answers with, 0 for a real answer. A kernel that has the subsystem as a module loads it.
func askNetfilter(typ uint16) (unix.Errno, error) {
	const length = unix.SizeofNlMsghdr + 4 // and struct nfgenmsg
	msg := make([]byte, length)
	binary.NativeEndian.PutUint32(msg[0:], length)
	binary.NativeEndian.PutUint16(msg[4:], typ)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST)
	msg[16] = unix.AF_UNSPEC
	errno, err := ask(unix.NETLINK_NETFILTER, msg)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return 0, fmt.Errorf("%w: netfilter's netlink is missing (CONFIG_NETFILTER_NETLINK)", ErrUnsupported)
	}
	return errno, err
}

// askForFamily asks for a family of generic netlink. A kernel that has it as a module loads it. The error is
// unix.ENOENT if there is none.
func askForFamily(name string) error {
	attr := 4 + len(name) + 1
	length := unix.SizeofNlMsghdr + 4 + attr // and struct genlmsghdr
	msg := make([]byte, (length+3)&^3)
	binary.NativeEndian.PutUint32(msg[0:], uint32(len(msg)))
	binary.NativeEndian.PutUint16(msg[4:], unix.GENL_ID_CTRL)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST)
	msg[16], msg[17] = unix.CTRL_CMD_GETFAMILY, 1
	binary.NativeEndian.PutUint16(msg[20:], uint16(attr))
	binary.NativeEndian.PutUint16(msg[22:], unix.CTRL_ATTR_FAMILY_NAME)
	copy(msg[24:], name)
	errno, err := ask(unix.NETLINK_GENERIC, msg)
	if err == nil && errno != 0 {
		return errno
	}
	return err
}

// ask sends a request and returns the error that the kernel answers with, 0 for a real answer.
func ask(protocol int, msg []byte) (unix.Errno, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return 0, fmt.Errorf("open a netlink socket: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(5 * time.Second)) // loading a module takes a moment
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return 0, fmt.Errorf("limit the wait for an answer: %w", err)
	}
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask: %w", err)
	}
	answer := make([]byte, 8192)
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
