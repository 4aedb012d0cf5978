package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// netfilter is a netlink socket to the netfilter subsystem of the network namespace in which it was opened. It may
// be used by many goroutines.
type netfilter struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

func openNetfilter() (*netfilter, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	limit := unix.NsecToTimeval(int64(5 * time.Second)) // to load a module takes a moment
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("limit the wait for netfilter's answers: %w", err)
	}
	return &netfilter{fd: fd}, nil
}

func (n *netfilter) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	unix.Close(n.fd)
	n.fd = -1
}

// ask sends a request with one string attribute, none if name is empty, and returns the attributes of the answer;
// nil for a mere acknowledgement. Errors wrap the kernel's number.
func (n *netfilter) ask(typ, flags uint16, attr uint16, name string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seq++
	msg := make([]byte, unix.SizeofNlMsghdr+4, 64) // and struct nfgenmsg
	binary.NativeEndian.PutUint16(msg[4:], typ)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(msg[8:], n.seq)
	if name != "" {
		msg = binary.NativeEndian.AppendUint16(msg, uint16(4+len(name)+1))
		msg = binary.NativeEndian.AppendUint16(msg, attr)
		msg = append(append(msg, name...), 0)
		for len(msg)%4 != 0 {
			msg = append(msg, 0)
		}
	}
	binary.NativeEndian.PutUint32(msg, uint32(len(msg)))
	if err := unix.Sendto(n.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("ask netfilter: %w", err)
	}
	answer := make([]byte, 4096)
	for {
		size, _, err := unix.Recvfrom(n.fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("wait for netfilter's answer: %w", err)
		}
		got := answer[:size]
		if size < unix.SizeofNlMsghdr+4 {
			return nil, fmt.Errorf("netfilter's answer has only %d bytes", size)
		}
		if binary.NativeEndian.Uint32(got[8:]) != n.seq { // of a request that took too long
			continue
		}
		if binary.NativeEndian.Uint16(got[4:]) == unix.NLMSG_ERROR {
			if no := int32(binary.NativeEndian.Uint32(got[16:])); no != 0 {
				return nil, unix.Errno(-no)
			}
			return nil, nil
		}
		end := min(int(binary.NativeEndian.Uint32(got)), size)
		return got[unix.SizeofNlMsghdr+4 : max(end, unix.SizeofNlMsghdr+4)], nil
	}
}

// attribute returns the value of an attribute, nil if it is not there.
func attribute(b []byte, typ uint16) []byte {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&0x3fff == typ {
			return b[4:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// generation returns the number of transactions that the nftables of the namespace have seen, modulo 2^32.
func (n *netfilter) generation() (uint32, error) {
	const id = 1 // NFTA_GEN_ID
	attrs, err := n.ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0, 0, "")
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	v := attribute(attrs, id)
	if len(v) != 4 {
		return 0, fmt.Errorf("ask for the generation of nftables: an answer without it")
	}
	return binary.BigEndian.Uint32(v), nil
}
