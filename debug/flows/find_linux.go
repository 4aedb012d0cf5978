package flows

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	nlconn "kube-proxy/internal/netlink"
	ctwire "kube-proxy/internal/netlink/conntrack"
)

const (
	// most is the default number of flows of a query.
	most = 100
	// reads is the most entries that are read if the kernel does not filter: before 5.8, and of
	// IPv6 those of one port.
	reads = 1 << 20
)

// Find returns the connections of the query, open ones first, in the network namespace of the
// calling thread. If the client's port is known the cost does not grow with the table, and only
// zone 0 is searched. Otherwise the kernel searches its table, which takes some 0.1 s for a million
// entries, and sends those that match, or 3 s if it cannot filter. At ctx's deadline Find returns
// what it has, with More set. An error is about reading; no connection is no error.
func Find(ctx context.Context, q Query) (Found, error) {
	if q.Most <= 0 {
		q.Most = most
	}
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER})
	if err != nil {
		return Found{}, fmt.Errorf("find connections: %w", err)
	}
	defer conn.Close()
	reading, enough := context.WithCancel(ctx) // ends a dump when enough is read, and closes the socket
	defer enough()

	s := search{query: q}
	var e ctwire.Entry
	take := func(m nlconn.Message) error {
		if s.read++; s.full || m.Type != ctwire.New {
			return nil
		}
		if e.Parse(m.Body) && q.is(&e) {
			s.add(flowOf(&e))
		}
		if s.full = s.full || s.read > reads; s.full {
			enough()
		}
		return nil
	}
	family := byte(unix.AF_INET)
	if q.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	t := ctwire.Tuple{From: q.From, To: q.To, Proto: uint8(q.Proto)}
	if q.From.Port() != 0 {
		err = conn.Do(reading, ctwire.GetRequest(family, t), take)
	} else {
		by := ctwire.ByProto | ctwire.ByPort
		if family == unix.AF_INET { // of IPv6 the kernel leaves out the very entries that have the address, as of 6.18
			by |= ctwire.BySource | ctwire.ByDestination
		}
		err = conn.Do(reading, ctwire.DumpRequest(family, t, by), take)
	}
	s.full = s.full || err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case err == nil, s.full, errors.Is(err, nlconn.ErrInterrupted), q.From.Port() != 0 && errors.Is(err, unix.ENOENT):
		return s.found(), nil
	}
	return Found{}, fmt.Errorf("find connections from %v to %v: %w", q.From, q.To, err)
}

// search keeps the results so far: as many flows of each stage as requested.
type search struct {
	query         Query
	live, closing []Flow
	ended, read   int
	more          bool // more closing ones than are kept
	full          bool // no more is read
}

func (s *search) add(f Flow) {
	most := s.query.Most
	switch stage := f.stage(); {
	case stage == ended && s.query.From.Port() == 0:
		s.ended++
	case stage == closing && len(s.closing) == most:
		s.more = true
	case stage == closing:
		s.closing = append(s.closing, f)
	case len(s.live) == most:
		s.full = true
	default:
		s.live = append(s.live, f)
	}
}

func (s *search) found() Found {
	flows := append(s.live, s.closing...)
	n := min(len(flows), s.query.Most)
	return Found{Flows: flows[:n], Ended: s.ended, More: s.full || s.more || n < len(flows), read: s.read}
}
