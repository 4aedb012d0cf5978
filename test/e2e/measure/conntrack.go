package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/netlab"
	"kube-proxy/internal/netlink/conntrack"
)

// connectionLimit is the machine's maximum for each network namespace. Only the first namespace can
// set it.
const connectionLimit = "/proc/sys/net/netfilter/nf_conntrack_max"

// FillConntrack makes n entries in the node's conntrack table: half UDP, half TCP, all answered.
// Where the machine's limit is too low it is raised until Close.
func (s *Session) FillConntrack(ctx context.Context, n int) error {
	if err := s.raiseLimit(2 * n); err != nil {
		return fmt.Errorf("raise the limit for %d conntrack entries: %w", n, err)
	}
	to := [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.1:443")}
	return s.bed.Lab.Do(netlab.Node1, func() error {
		return conntrack.Fill(ctx, n, func(i int) conntrack.Entry {
			client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(i >> 15), byte(i >> 7)}),
				uint16(1024+i&127))
			e := conntrack.Entry{Orig: conntrack.Tuple{From: client, To: to[i%2], Proto: unix.IPPROTO_UDP},
				Reply:  conntrack.Tuple{From: to[i%2], To: client, Proto: unix.IPPROTO_UDP},
				Status: conntrack.SeenReply | conntrack.Assured, Timeout: 3600}
			if i%2 == 1 {
				e.Orig.Proto, e.Reply.Proto, e.State = unix.IPPROTO_TCP, unix.IPPROTO_TCP, 3 // established
			}
			return e
		})
	})
}

// raiseLimit raises the machine's limit where it is less than n.
func (s *Session) raiseLimit(n int) error {
	text, err := os.ReadFile(connectionLimit)
	if errors.Is(err, os.ErrNotExist) && n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	var limit int
	if _, err := fmt.Sscan(strings.TrimSpace(string(text)), &limit); err != nil {
		return fmt.Errorf("%s is %q: %w", connectionLimit, text, err)
	}
	if limit >= n {
		return nil
	}
	s.config.Logf("raising %s from %d to %d for this measurement", connectionLimit, limit, n)
	if err := os.WriteFile(connectionLimit, []byte(fmt.Sprint(n)), 0o644); err != nil {
		return err
	}
	if s.limit == nil {
		s.limit = text
	}
	return nil
}

// restoreLimit undoes raiseLimit.
func (s *Session) restoreLimit() error {
	if s.limit == nil {
		return nil
	}
	return os.WriteFile(connectionLimit, s.limit, 0o644)
}
