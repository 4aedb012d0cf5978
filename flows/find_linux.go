package flows

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kube-proxy/internal/ctwire"
	"kube-proxy/internal/nlconn"
)

const (
	// most is what a query gets that does not say how much it wants.
	most = 100
	// reads is how many entries are read at most where the kernel does not leave out the others: before 5.8, and of IPv6 those of one port.
	reads = 1 << 20
)

// Find returns the connections that the query asks for, of the network namespace of the calling thread. Where the client's port is known
// it costs as much in a table of any size, and finds no entry of another zone than 0, which rules give. Otherwise the kernel looks through
// its table, some 0.1 s for a million entries, and sends what fits. An error is of reading; that there is none is no error.
func Find(ctx context.Context, q Query) (Found, error) {
	if q.Most <= 0 {
		q.Most = most
	}
	conn, err := nlconn.Open(nlconn.Config{Protocol: unix.NETLINK_NETFILTER})
	if err != nil {
		return Found{}, fmt.Errorf("look for connections: %w", err)
	}
	defer conn.Close()
	ctx, enough := context.WithCancel(ctx) // which ends a dump of which enough is read; the socket goes with it
	defer enough()

	var found Found
	var e ctwire.Entry
	seen := 0
	take := func(m nlconn.Message) error {
		if seen++; found.More || m.Type != ctwire.New {
			return nil
		}
		if ok, err := e.Parse(m.Body); !ok || err != nil {
			return err
		}
		switch is := q.is(&e); {
		case is && len(found.Flows) < q.Most:
			found.Flows = append(found.Flows, flowOf(&e))
			return nil
		case is || seen > reads:
			found.More = true
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
		err = conn.Do(ctx, ctwire.GetRequest(family, t), take)
	} else {
		by := ctwire.ByProto | ctwire.ByPort
		if family == unix.AF_INET { // of IPv6 the kernel leaves out the very entries that have the address, as of 6.18
			by |= ctwire.BySource | ctwire.ByDestination
		}
		err = conn.Do(ctx, ctwire.DumpRequest(family, t, by), take)
	}
	switch {
	case err == nil, found.More, errors.Is(err, nlconn.ErrInterrupted), q.From.Port() != 0 && errors.Is(err, unix.ENOENT):
		return found, nil
	}
	return Found{}, fmt.Errorf("look for connections of %v to %v: %w", q.From, q.To, err)
}
