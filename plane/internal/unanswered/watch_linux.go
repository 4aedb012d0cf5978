package unanswered

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kube-proxy/conntrack"
	"kube-proxy/failover"
	"kube-proxy/internal/netlink"
	"kube-proxy/internal/netlink/nflog"
	"kube-proxy/internal/nft/rule"
	"kube-proxy/internal/nft/wire"
	"kube-proxy/internal/ratelimit"
	"kube-proxy/lb"
	"kube-proxy/plane/selfwrites"
)

// Config configures a Watch.
type Config struct {
	// Family is the IP family; required.
	Family lb.Family
	// LateTranslation: packets are translated after prerouting and output, by IPVS. Service
	// addresses are then addresses of this node.
	LateTranslation bool
	// Writes is shared by the planes of this process in one network namespace; nil if no plane
	// shares it.
	Writes *selfwrites.Ledger
	// Log receives lost reports and repairs; nil is slog.Default().
	Log *slog.Logger
}

// Watch reports, and ends, waits for endpoints of one family. It is a control.NoticeSource and a
// control.Rescuer. It has no resources while Run does not run.
type Watch struct {
	cfg    Config
	losses *ratelimit.Limiter

	mu      sync.Mutex
	session *session // nil while Run does not run
}

// session has what a call of Run opened. Watch.mu protects it.
type session struct {
	table   *table
	chains  []rule.Chain // that watch
	ends    time.Time    // when the chains of ResetConnections are to be deleted; zero without them
	rescuer *conntrack.Rescuer
	prod    *prod
	reports *reports
}

// New returns a Watch. It opens nothing.
func New(cfg Config) *Watch {
	cfg.Log, cfg.Writes = cmp.Or(cfg.Log, slog.Default()), cmp.Or(cfg.Writes, &selfwrites.Ledger{})
	return &Watch{cfg: cfg, losses: ratelimit.New(cfg.Log, "Lost reports of unanswered connections")}
}

// errOff is the error of calls while Run does not run.
var errOff = errors.New("unanswered connections are not watched")

// Run implements control.NoticeSource, in the network namespace of the calling thread. It returns
// an error if the kernel lacks nf_tables, nfnetlink_log or nf_conntrack_netlink.
func (w *Watch) Run(ctx context.Context, each func(failover.Notice)) error {
	listener, err := w.open(ctx)
	if err != nil {
		return fmt.Errorf("watch unanswered connections: %w", err)
	}
	w.serve(ctx, listener, each)
	return nil
}

// open opens a session, and the socket of its reports.
func (w *Watch) open(ctx context.Context) (*netlink.Conn, error) {
	listener, group, err := bind(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.start(ctx, group); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// serve reports until ctx ends, and closes the session.
func (w *Watch) serve(ctx context.Context, listener *netlink.Conn, each func(failover.Notice)) {
	defer w.stop()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	var repairs sync.WaitGroup
	defer repairs.Wait()
	repairs.Go(func() { w.repair(ctx) })
	reports := w.session.reports
	listener.Listen(func(m netlink.Message) {
		n, ok, err := reports.notice(ctx, m)
		if ok {
			each(n)
		} else if err != nil && ctx.Err() == nil && w.losses.Allow("") {
			w.cfg.Log.Warn("Failed to read the connection of an unanswered packet", "err", err)
		}
	}, func() {
		if w.losses.Allow("") {
			w.cfg.Log.Warn("Lost reports of unanswered connections: they came faster than this process reads them")
		}
	})
}

// firstGroup is the first of the groups of nfnetlink_log that are tried; other programs may have
// some of them.
const (
	firstGroup = 10256
	groups     = 16
)

// bind opens a socket that receives the packets of a group.
func bind(ctx context.Context) (conn *netlink.Conn, group uint16, err error) {
	for group = firstGroup; group < firstGroup+groups; group++ {
		conn, err = netlink.Open(netlink.Config{Protocol: unix.NETLINK_NETFILTER, ReceiveBuffer: wire.ReceiveBuffer})
		if err != nil {
			return nil, 0, err
		}
		for _, request := range nflog.Bind(group, headers) {
			if err == nil {
				err = conn.Do(ctx, request, nil)
			}
		}
		if err == nil {
			return conn, group, nil
		}
		conn.Close()
		if !errors.Is(err, unix.EPERM) { // which also means that another socket has the group
			break
		}
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("this kernel has no nfnetlink_log (CONFIG_NETFILTER_NETLINK_LOG): %w", err)
	}
	return nil, 0, fmt.Errorf("listen to a group of nfnetlink_log: %w", err)
}

// start opens a session and writes the table.
func (w *Watch) start(ctx context.Context, group uint16) error {
	translated := rule.DestinationTranslated
	if w.cfg.LateTranslation {
		translated = rule.DestinationIsLocal
	}
	sock, err := wire.Open()
	if err != nil {
		return err
	}
	s := &session{table: &table{newLayout(rule.IPOf(w.cfg.Family), translated), sock, w.cfg.Writes}}
	s.chains = s.table.watching(group)
	s.prod = newProd(w.cfg.Family)
	s.reports, err = openReports(s.table.Proto)
	if err == nil {
		s.rescuer, err = conntrack.NewRescuer(w.cfg.Family)
	}
	if err == nil {
		err = s.table.replace(ctx, s.chains)
	}
	if err != nil {
		return errors.Join(err, s.close())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.session = s
	return nil
}

func (s *session) close() (err error) {
	if s.rescuer != nil {
		err = s.rescuer.Close()
	}
	return errors.Join(err, s.reports.close(), s.prod.close(), s.table.Socket.Close())
}

// stop deletes the table, and closes the session.
func (w *Watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.session.table.remove(context.Background())
	err = errors.Join(err, w.session.close())
	if err != nil {
		w.cfg.Log.Warn("Failed to stop watching unanswered connections; the rules have no effect without this process",
			"err", err)
	}
	w.session = nil
}

// period is the time between two comparisons of the table with the kernel.
const period = 10 * time.Second

// repair compares the table with the kernel from time to time until ctx ends.
func (w *Watch) repair(ctx context.Context) {
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		if err := w.check(ctx); err != nil && ctx.Err() == nil {
			w.cfg.Log.Warn("Failed to check the rules for unanswered connections, retrying", "err", err)
		}
	}
}

// check repairs the table, and removes the chains of ResetConnections when they are not needed.
func (w *Watch) check(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.session
	if err := s.endReset(ctx); err != nil {
		return err
	}
	intact, err := s.table.intact(ctx, s.chains)
	if err != nil || intact {
		return err
	}
	w.cfg.Log.Info("Repairing the rules for unanswered connections, which another program changed")
	s.ends = time.Time{}
	return s.table.replace(ctx, s.chains)
}
