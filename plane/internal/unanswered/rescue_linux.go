package unanswered

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/conntrack"
	"kube-proxy/failover"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
)

// Rescue implements control.Rescuer.
func (w *Watch) Rescue(ctx context.Context, endpoints []failover.Endpoint) (rescued int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session == nil {
		return 0, errOff
	}
	rescued, err = w.session.rescuer.Rescue(ctx, endpoints)
	if err != nil {
		err = fmt.Errorf("forget unanswered connections to %d endpoints: %w", len(endpoints), err)
	}
	return rescued, err
}

// RescueAvoids implements control.Avoider: IPVS keeps a repeated packet at its real server while
// that has a weight.
func (w *Watch) RescueAvoids() bool { return w.cfg.LateTranslation }

// Rules refuse the packets of an ended connection for endedFor, of at most maxEnded connections.
const (
	endedFor = time.Minute
	maxEnded = 65536
)

// errMany means that not all connections are ended.
var errMany = fmt.Errorf("more than %d established connections to endpoints of unreachable nodes: those above the "+
	"limit are not reset", maxEnded)

// ResetConnections implements control.Rescuer, for the established TCP connections that exist now.
// Rules answer the next packet of each client with a reset. A client that only waits sends none, so
// it gets a segment outside its window, which it must acknowledge (RFC 9293, 3.10.7.4).
//
// New connections to the endpoint are not affected, because the rules match both ends.
func (w *Watch) ResetConnections(ctx context.Context, endpoints []failover.Endpoint) (ended int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session == nil {
		return 0, errOff
	}
	return w.session.reset(ctx, endpoints)
}

func (s *session) reset(ctx context.Context, endpoints []failover.Endpoint) (ended int, err error) {
	var all []conntrack.Connection
	more := false
	err = s.rescuer.Established(ctx, endpoints, func(c conntrack.Connection) {
		more = len(all) == maxEnded
		if !more {
			all = append(all, c)
		}
	})
	if more {
		err = errors.Join(err, errMany)
	}
	if len(all) == 0 {
		return 0, err
	}
	if refused := s.refuse(ctx, all); refused != nil {
		return 0, fmt.Errorf("reset %d connections: %w", len(all), refused)
	}
	for _, c := range all {
		if failed := s.prod.send(c); failed != nil {
			failed = fmt.Errorf("clients that only wait do not notice the end of their connection: %w", failed)
			return len(all), errors.Join(err, failed)
		}
	}
	return len(all), err
}

// refuse makes rules answer the clients' packets with a reset.
func (s *session) refuse(ctx context.Context, all []conntrack.Connection) error {
	err := s.table.change(ctx, func(out *wire.Transaction) {
		if s.ends.IsZero() {
			add(out, s.table.ending(s.prod.sequence))
		}
		var rec []byte
		for _, c := range all {
			rec = wire.AppendAddrPort(rec[:0], c.Client)
			rec = wire.AppendAddrPort(rec, c.Endpoint)
			out.Add(sEnded, rec)
		}
	})
	if err == nil {
		s.ends = time.Now().Add(endedFor)
	}
	return err
}

// endReset deletes the chains of ResetConnections when no connection needs them any more.
func (s *session) endReset(ctx context.Context) error {
	if s.ends.IsZero() || time.Now().Before(s.ends) {
		return nil
	}
	err := s.table.change(ctx, func(out *wire.Transaction) {
		for _, c := range s.table.ending(s.prod.sequence) {
			out.DeleteChain(c.Name)
		}
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	s.ends = time.Time{}
	return nil
}

// ending returns the chains that refuse the set's connections, and let segments of a prod pass
// untranslated.
func (l *layout) ending(sequence uint32) (chains []rule.Chain) {
	for i, name := range []string{"end-prerouting", "end-output"} {
		key := append(l.Client(), l.Endpoint()...)
		chains = append(chains, rule.Chain{Name: name, Hook: hooks[i], Rules: []rule.Rule{
			l.New("", rule.OverTCP, rule.Established, rule.Original, rule.In(&l.sets[sEnded], key...),
				rule.TCPReset)}})
	}
	return append(chains, rule.Chain{Name: "prod", Hook: wire.Hook{Type: "filter", Num: unix.NF_INET_LOCAL_OUT,
		Priority: raw},
		Rules: []rule.Rule{l.New("", rule.OverTCP, rule.Sequence(sequence), rule.Untracked)}})
}
