package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// patience is how long the kernel may take to answer: loading a module takes a moment.
const patience = 5 * time.Second

// Netfilter asks the netfilter subsystems of the network namespace in which it was opened, whatever the thread that
// asks. It may be used by many goroutines.
//
// Of mdlayher/netlink only the attributes are here: its receiving waits for the end of an answer of which the kernel says
// that more comes (NLM_F_MULTI), while nfnetlink_acct and nft_compat say so of their only message.
type Netfilter struct {
	socket *nl.NetlinkSocket // locked from a request to the end of its answers
	shared map[int]*nl.SocketHandle
}

// OpenNetfilter opens a client for the network namespace of the calling thread. The error wraps ErrUnsupported if the
// kernel has no netlink of netfilter.
func OpenNetfilter() (*Netfilter, error) {
	socket, shared, err := openNetlink(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("%w: netfilter's netlink is missing (CONFIG_NETFILTER_NETLINK)", ErrUnsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("open a netfilter netlink socket: %w", err)
	}
	return &Netfilter{socket, shared}, nil
}

// openNetlink opens a socket, and wraps it as requests want it.
func openNetlink(protocol int) (*nl.NetlinkSocket, map[int]*nl.SocketHandle, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), protocol)
	if err != nil {
		return nil, nil, err
	}
	limit := unix.NsecToTimeval(int64(patience))
	if err := s.SetReceiveTimeout(&limit); err != nil {
		s.Close()
		return nil, nil, fmt.Errorf("limit the wait for answers: %w", err)
	}
	return s, map[int]*nl.SocketHandle{protocol: {Socket: s}}, nil
}

// Close gives the socket back, after the answer that another goroutine waits for. Requests fail from then on.
func (n *Netfilter) Close() {
	n.socket.Lock()
	defer n.socket.Unlock()
	n.socket.Close()
}

// Ask sends a request of type subsystem<<8|message for an address family, with the attributes that attrs encodes, numbers
// in network order; nil encodes none. It returns the attributes of each answer, for [Attributes]; none for a mere
// acknowledgement, and none for a dump of something that is not there (ENOENT). An answer that the kernel marks as one of
// many, though it is no dump's, needs the flag NLM_F_ACK: the acknowledgement ends it.
//
// What the kernel refuses with is a bare unix.Errno, EINVAL or EOPNOTSUPP if it has no such subsystem. The error wraps
// os.ErrDeadlineExceeded if there is no answer within 5 s.
func (n *Netfilter) Ask(typ uint16, flags int, family byte, attrs func(*netlink.AttributeEncoder)) ([][]byte, error) {
	request := nl.NewNetlinkRequest(int(typ), flags)
	request.Sockets = n.shared
	request.RawData = []byte{family, unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg
	if attrs != nil {
		ae := netlink.NewAttributeEncoder()
		ae.ByteOrder = binary.BigEndian
		attrs(ae)
		b, err := ae.Encode()
		if err != nil {
			return nil, fmt.Errorf("encode a request to netfilter: %w", err)
		}
		request.AddRawData(b)
	}
	// Answers to an earlier request, which took too long, may come first; by their number they are left out.
	bodies, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case err == unix.EAGAIN: // never an answer: netfilter itself tries again then
		return nil, fmt.Errorf("wait for netfilter's answer: %w", os.ErrDeadlineExceeded)
	case err == unix.ENOENT && flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
		return nil, nil
	case errors.Is(err, nl.ErrDumpInterrupted): // others changed something meanwhile, which may be in the answers or not
	case err != nil:
		return nil, err
	}
	for i, b := range bodies {
		bodies[i] = b[min(4, len(b)):]
	}
	return bodies, nil
}

// Attributes calls f for each attribute of an answer, or of what is nested in one. Numbers are in network order.
func Attributes(b []byte, f func(*netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// Generation returns the number of transactions that the nftables of the namespace have seen, modulo 2^32.
func (n *Netfilter) Generation() (uint32, error) {
	bodies, err := n.Ask(getGeneration, 0, unix.AF_UNSPEC, nil)
	var generation uint32
	there := false
	for _, b := range bodies {
		err = Attributes(b, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == 1 { // NFTA_GEN_ID
				generation, there = ad.Uint32(), true
			}
		})
	}
	if err == nil && !there {
		err = errors.New("an answer without it")
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	return generation, nil
}

const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN

// Chain is one of nf_tables.
type Chain struct{ Table, Name string }

// Chains lists the chains of all nf_tables of a family, unix.NFPROTO_IPV4 or another. Errors are those of [Netfilter.Ask].
func (n *Netfilter) Chains(family byte) ([]Chain, error) {
	bodies, err := n.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family, nil)
	if err != nil {
		return nil, err
	}
	chains := make([]Chain, len(bodies))
	for i, b := range bodies {
		err := Attributes(b, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TABLE:
				chains[i].Table = ad.String()
			case unix.NFTA_CHAIN_NAME:
				chains[i].Name = ad.String()
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return chains, nil
}

// askNetfilter asks the netfilter of the calling thread's network namespace for something without attributes, and returns
// the error that the kernel answers with, 0 for a real answer. A kernel that has the subsystem as a module loads it.
func askNetfilter(typ uint16) (unix.Errno, error) {
	n, err := OpenNetfilter()
	if err != nil {
		return 0, err
	}
	defer n.Close()
	_, err = n.Ask(typ, 0, unix.AF_UNSPEC, nil)
	if errno, answered := err.(unix.Errno); answered {
		return errno, nil
	}
	return 0, err
}
