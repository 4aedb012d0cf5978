package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlink"
)

// Netfilter sends requests to netfilter in the network namespace in which it was opened. It is safe
// for concurrent use.
type Netfilter struct {
	mu   sync.Mutex // from a request to the end of its answers
	conn *netlink.Conn
}

// OpenNetfilter opens a client for the calling thread's network namespace. The error wraps
// ErrUnsupported if the kernel has no netlink of netfilter.
func OpenNetfilter() (*Netfilter, error) {
	conn, err := openNetfilter(netlink.Config{})
	if err != nil {
		return nil, err
	}
	return &Netfilter{conn: conn}, nil
}

func openNetfilter(cfg netlink.Config) (*netlink.Conn, error) {
	cfg.Protocol = unix.NETLINK_NETFILTER
	conn, err := netlink.Open(cfg)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("%w: netfilter's netlink is missing (CONFIG_NETFILTER_NETLINK)", ErrUnsupported)
	}
	return conn, err
}

// Close closes the socket, after the answer to a pending request.
func (n *Netfilter) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conn.Close()
}

// Ask sends a request of type subsystem<<8|message for an address family, with the attributes that
// attrs appends, if it is not nil. It returns the attributes of each answer; none for a mere
// acknowledgement, and none for a dump of something that is not there (ENOENT). An answer that the
// kernel marks as one of many, though it is no dump's, needs the flag NLM_F_ACK: the
// acknowledgement ends it.
//
// A refusal is an [*netlink.Error], EINVAL or EOPNOTSUPP if the kernel has no such subsystem. The
// error wraps netlink.ErrNoAnswer if there is no answer within [netlink.Timeout].
func (n *Netfilter) Ask(typ, flags uint16, family byte, attrs func(*netlink.Encoder)) ([][]byte, error) {
	var e netlink.Encoder
	at := e.Netfilter(typ, flags, family, 0, 0)
	if attrs != nil {
		attrs(&e)
	}
	e.EndMessage(at)
	var bodies [][]byte
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.conn.Do(context.Background(), e.B, func(m netlink.Message) error {
		bodies = append(bodies, bytes.Clone(m.Body[min(4, len(m.Body)):])) // behind struct nfgenmsg
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT) && flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
		return nil, nil
	case errors.Is(err, netlink.ErrInterrupted): // a concurrent change may be missing
	case err != nil:
		return nil, err
	}
	return bodies, nil
}

// Generation returns the number of nftables transactions in the namespace, modulo 2^32.
func (n *Netfilter) Generation() (uint32, error) {
	bodies, err := n.Ask(getGeneration, 0, unix.AF_UNSPEC, nil)
	if err == nil && len(bodies) == 0 {
		err = errors.New("an answer without it")
	}
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	return netlink.BE32(netlink.Attribute(bodies[0], unix.NFTA_GEN_ID)), nil
}

const getGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN

// Chain is one of nf_tables.
type Chain struct{ Table, Name string }

// Chains lists the nf_tables chains of a family, unix.NFPROTO_IPV4 or another. Errors are those of
// [Netfilter.Ask].
func (n *Netfilter) Chains(family byte) ([]Chain, error) {
	bodies, err := n.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family, nil)
	if err != nil {
		return nil, err
	}
	chains := make([]Chain, len(bodies))
	for i, b := range bodies {
		chains[i].Table = netlink.CStr(netlink.Attribute(b, unix.NFTA_CHAIN_TABLE))
		chains[i].Name = netlink.CStr(netlink.Attribute(b, unix.NFTA_CHAIN_NAME))
	}
	return chains, nil
}

// askNetfilter sends a request without attributes in the calling thread's network namespace, and
// returns the kernel's error, or 0. The kernel loads a module if it has one.
func askNetfilter(typ uint16) (unix.Errno, error) {
	n, err := OpenNetfilter()
	if err != nil {
		return 0, err
	}
	defer n.Close()
	_, err = n.Ask(typ, 0, unix.AF_UNSPEC, nil)
	var refused *netlink.Error
	if errors.As(err, &refused) {
		return refused.Errno, nil
	}
	return 0, err
}
